/** What threads that quantize need, without the rest of the package: they start with every conversion. */

export { asCflowError, asKnownCode, CflowError } from './errors.js';
export { DTYPES, type Dtype, stripeBytes } from './tiles/dtype.js';
export { type QuantizeOptions, quantizeStripe } from './tiles/tile.js';
export { type StripeId, writeStripeHeaders } from './tiles/tile-header.js';
