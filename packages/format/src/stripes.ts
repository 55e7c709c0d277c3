/** What threads that quantize need, without the rest of the package: they start with every conversion. */
export { DTYPES, type Dtype, stripeBytes } from './dtype.js';
export { asCflowError, asKnownCode, CflowError } from './errors.js';
export { type QuantizeOptions, quantizeStripe, type StripeId } from './tile.js';
