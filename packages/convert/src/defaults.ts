/** Defaults and limits that the command line shows; a module of its own, so that help loads no converter. */

/** The defaults of command and library. */
export const CONVERT_DEFAULTS = {
  model: 'auto',
  dtype: 'q4_0',
  scaleSearch: true,
  zeroNonfinite: false,
  overwrite: false,
  verify: false,
  resume: false,
  cache: true,
  strict: false,
} as const;

/** Most quantizing threads. */
export const MOST_THREADS = 256;

/** Most bytes of a safetensors header: beyond it a header is no string of JavaScript any more. */
export const MOST_HEADER_BYTES = 500_000_000;
