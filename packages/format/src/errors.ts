/** Every kind of failure, with the exit code of the command that meets it. One row per decision a caller can take. */
export const EXIT_CODES = {
  /** The command line is wrong. */
  USAGE: 2,
  /** A file or directory is missing or cannot be read. */
  NOT_READABLE: 3,
  /** The bytes are not what the format demands: magic, offsets, lengths, tables, tiles, padding. */
  FORMAT_INVALID: 4,
  /** The file is of another version of the format. */
  VERSION_UNSUPPORTED: 5,
  /** A configuration (config.json, metadata, preset) is wrong or contradicts itself. */
  CONFIG_INVALID: 6,
  /** Tensors are missing, surplus, or of another shape than the configuration says. */
  TENSOR_MISMATCH: 7,
  /** Valid, but a model type, dtype or feature that this version does not handle. */
  UNSUPPORTED: 8,
  /** A weight is NaN or infinite. */
  NONFINITE_WEIGHT: 9,
  /** The output exists, or is one of the inputs. */
  OUTPUT_EXISTS: 10,
  /** Writing failed: no space, no permission. */
  WRITE_FAILED: 11,
  /** A count or size is over a limit of the format or of this machine. */
  LIMIT_EXCEEDED: 12,
  /** Checksums or contents differ from what the file claims. */
  VERIFY_FAILED: 13,
  /** A defect of cflow itself. */
  INTERNAL: 70,
  /** The user interrupted the work. */
  INTERRUPTED: 130,
} as const;

export type ErrorCode = keyof typeof EXIT_CODES;

/** What an error names, as far as it applies; `remedy` says what to do about it. */
export interface ErrorDetails {
  file?: string | undefined;
  field?: string | undefined;
  offset?: number | undefined;
  value?: unknown;
  limit?: unknown;
  remedy?: string | undefined;
  cause?: unknown;
}

/** The one error type of the project: a code for programs, one sentence for people. */
export class CflowError extends Error {
  override readonly name = 'CflowError';
  readonly code: ErrorCode;
  readonly details: ErrorDetails;

  constructor(code: ErrorCode, problem: string, details: ErrorDetails = {}) {
    super(sentence(problem, details), details.cause === undefined ? undefined : { cause: details.cause });
    this.code = code;
    this.details = details;
  }

  get exitCode(): number {
    return EXIT_CODES[this.code];
  }
}

function sentence(problem: string, { file, field, offset, remedy }: ErrorDetails): string {
  const where = [file, field, offset === undefined ? undefined : `at byte ${offset}`]
    .filter(Boolean)
    .join(': ');
  return `${where ? `${where}: ` : ''}${problem}${remedy ? ` (${remedy})` : ''}`;
}

/** Throws FORMAT_INVALID; an expression, so it fits where a value is needed. */
export function invalid(problem: string, details: ErrorDetails = {}): never {
  throw new CflowError('FORMAT_INVALID', problem, details);
}
