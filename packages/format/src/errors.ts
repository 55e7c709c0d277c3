/** Every kind of failure, with the exit code of the command that meets it. One row per decision a caller can take. */
export const ERRORS = {
  USAGE: { exit: 2, meaning: 'The command line is wrong' },
  NOT_READABLE: { exit: 3, meaning: 'A file or directory is missing or cannot be read' },
  FORMAT_INVALID: {
    exit: 4,
    meaning: 'The bytes are not what the format demands: magic, offsets, lengths, tables, tiles, padding',
  },
  VERSION_UNSUPPORTED: { exit: 5, meaning: 'The file is of another version of the format' },
  CONFIG_INVALID: {
    exit: 6,
    meaning: 'A configuration (config.json, metadata, preset) is wrong or contradicts itself',
  },
  TENSOR_MISMATCH: {
    exit: 7,
    meaning: 'Tensors are missing, surplus, or of another shape than the configuration says',
  },
  UNSUPPORTED: {
    exit: 8,
    meaning: 'Valid, but a model type, dtype or feature that this version does not handle',
  },
  NONFINITE_WEIGHT: { exit: 9, meaning: 'A weight is NaN or infinite' },
  OUTPUT_EXISTS: { exit: 10, meaning: 'The output exists, or is one of the inputs' },
  WRITE_FAILED: { exit: 11, meaning: 'Writing failed: no space, no permission' },
  LIMIT_EXCEEDED: { exit: 12, meaning: 'A count or size is over a limit of the format or of this machine' },
  VERIFY_FAILED: { exit: 13, meaning: 'Checksums or contents differ from what the file claims' },
  MEMORY: { exit: 14, meaning: 'Not enough memory for weights, caches or buffers' },
  INTERNAL: { exit: 70, meaning: 'A defect of cflow itself' },
  INTERRUPTED: { exit: 130, meaning: 'The user interrupted the work' },
} as const;

/** What kind of failure a CflowError is. */
export type ErrorCode = keyof typeof ERRORS;
/** The error codes, as `ERRORS` lists them. */
export const ERROR_CODES = Object.keys(ERRORS) as ErrorCode[];

/** A code that came from elsewhere (native code, another thread); one that is not ours is a defect. */
export function asKnownCode(code: unknown): ErrorCode {
  return ERROR_CODES.find((known) => known === code) ?? 'INTERNAL';
}

/** What an error names, as far as it applies; `remedy` says what to do about it. */
export interface ErrorDetails {
  file?: string | undefined;
  field?: string | undefined;
  offset?: number | undefined;
  value?: unknown;
  limit?: unknown;
  remedy?: string | undefined;
  /** What had happened before, and stands all the same. */
  notes?: readonly string[] | undefined;
  cause?: unknown;
}

/** The one error type of the project: a code for programs, one sentence for people. */
export class CflowError extends Error {
  override readonly name = 'CflowError';
  readonly code: ErrorCode;
  /** What is wrong, without the details that the message puts around it. */
  readonly problem: string;
  readonly details: ErrorDetails;

  constructor(code: ErrorCode, problem: string, details: ErrorDetails = {}) {
    super(sentence(problem, details), details.cause === undefined ? undefined : { cause: details.cause });
    this.code = code;
    this.problem = problem;
    this.details = details;
  }

  get exitCode(): number {
    return ERRORS[this.code].exit;
  }
}

function sentence(problem: string, { file, field, offset, remedy, notes = [] }: ErrorDetails): string {
  const where = [file, field, offset === undefined ? undefined : `at byte ${offset}`]
    .filter(Boolean)
    .join(': ');
  const said = `${where ? `${where}: ` : ''}${problem}${remedy ? ` (${remedy})` : ''}`;
  return [said, ...notes.map((note) => `note: ${note}`)].join('; ');
}

/** Any thrown value as a CflowError; what is not one is a defect of ours, and is called that. */
export function asCflowError(error: unknown): CflowError {
  if (error instanceof CflowError) return error;
  const message = error instanceof Error ? error.message : String(error);
  return new CflowError('INTERNAL', `internal error: ${message}`, {
    cause: error,
    remedy: 'please report this',
  });
}

/** Control and format characters escaped: text out of a file must neither steer a terminal nor break a line. */
export function printable(text: string): string {
  return text.replace(
    /[\p{Cc}\p{Cf}\u2028\u2029]/gu,
    (c) => `\\u${c.codePointAt(0)!.toString(16).padStart(4, '0')}`,
  );
}

/** The one line that a command prints for an error. */
export function errorLine(command: string, error: CflowError): string {
  return `${command}: error: ${printable(error.message)}\n`;
}

/** The exit codes for a command's help. */
export function exitCodeHelp(): string {
  const rows = ERROR_CODES.map(
    (code) => `  ${String(ERRORS[code].exit).padStart(3)}  ${ERRORS[code].meaning}`,
  );
  return ['Exit codes:', '    0  Done', ...rows].join('\n');
}

/** Throws FORMAT_INVALID; an expression, so it fits where a value is needed. */
export function invalid(problem: string, details: ErrorDetails = {}): never {
  throw new CflowError('FORMAT_INVALID', problem, details);
}
