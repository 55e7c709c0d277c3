/** Errors as OpenAI's API has them: one envelope, with a type, a code and the field that is wrong. */
import { asCflowError, type CflowError, type ErrorCode } from '@cflow/format';
import type { FastifyError } from 'fastify';
import { hasZodFastifySchemaValidationErrors } from 'fastify-type-provider-zod';
import { requestField } from './schema/options.js';

/** What an error says besides its message. */
export interface ApiErrorDetails {
  /** HTTP status. */
  readonly status: number;
  /** One of OpenAI's: `invalid_request_error`, `authentication_error`, `rate_limit_error`, `server_error` and so on. */
  readonly type: string;
  readonly code?: string | null;
  /** The field of the request, as `messages[0].content`. */
  readonly param?: string | null;
  /** Seconds after which another attempt makes sense. Absent = clients must not repeat the request by themselves. */
  readonly retryAfter?: number;
}

/** An error that a client gets to see. */
export class ApiError extends Error {
  override readonly name = 'ApiError';
  readonly details: ApiErrorDetails;

  constructor(message: string, details: ApiErrorDetails, cause?: unknown) {
    super(message, cause === undefined ? undefined : { cause });
    this.details = details;
  }

  /** The body of the answer. */
  get envelope(): ErrorEnvelope {
    const { type, code = null, param = null } = this.details;
    return { error: { message: this.message, type, param, code } };
  }

  /** Headers that tell clients whether to try again. */
  get headers(): Record<string, string> {
    const { retryAfter } = this.details;
    return retryAfter === undefined
      ? { 'x-should-retry': 'false' }
      : { 'retry-after': String(retryAfter), 'x-should-retry': 'true' };
  }
}

/** The body of every answer that is an error. */
export interface ErrorEnvelope {
  readonly error: {
    readonly message: string;
    readonly type: string;
    readonly param: string | null;
    readonly code: string | null;
  };
}

/** @param param the field that is wrong */
export function badRequest(
  message: string,
  param: string | null = null,
  code: string | null = null,
): ApiError {
  return new ApiError(message, { status: 400, type: 'invalid_request_error', param, code });
}

/** The server has more requests than places. @param retryAfter seconds */
export function overloaded(message: string, retryAfter: number): ApiError {
  const details = { status: 429, type: 'rate_limit_error', code: 'rate_limit_exceeded', retryAfter };
  return new ApiError(message, details);
}

/** Why a request that ran was ended; the reason of its AbortSignal. */
export const timedOut = (seconds: number): ApiError =>
  new ApiError(`the request took longer than ${seconds} s (--timeout)`, {
    status: 504,
    type: 'timeout_error',
    code: 'timeout',
  });

/** The server ends. */
export const shuttingDown = (): ApiError =>
  new ApiError('the server is shutting down', {
    status: 503,
    type: 'server_error',
    code: 'shutting_down',
    retryAfter: 5,
  });

/** What an error of the library means to a client. Codes that are absent are defects or faults of this machine. */
const OF_LIBRARY: Partial<Record<ErrorCode, Omit<ApiErrorDetails, 'param'>>> = {
  USAGE: { status: 400, type: 'invalid_request_error' },
  UNSUPPORTED: { status: 400, type: 'invalid_request_error', code: 'unsupported' },
  LIMIT_EXCEEDED: { status: 400, type: 'invalid_request_error', code: 'limit_exceeded' },
  MEMORY: { status: 503, type: 'server_error', code: 'out_of_memory', retryAfter: 10 },
};

/** What an error of HTTP means to a client, by its status. */
const OF_HTTP: Readonly<Record<number, string>> = {
  400: 'invalid_json',
  404: 'not_found',
  405: 'method_not_allowed',
  408: 'timeout',
  413: 'body_too_large',
  414: 'uri_too_long',
  415: 'unsupported_media_type',
  431: 'headers_too_large',
};

/** Any thrown value as what a client gets. Faults of this machine are for the log: the client learns that there was one. */
export function toApiError(error: unknown): ApiError {
  if (error instanceof ApiError) return error;
  if (hasZodFastifySchemaValidationErrors(error)) return ofSchema(error.validation);
  const status = (error as Partial<FastifyError> | null)?.statusCode;
  if (status !== undefined && status >= 400 && status < 500) return ofHttp(status, (error as Error).message);
  return ofLibrary(asCflowError(error));
}

/** An error of a status alone. */
export function ofHttp(status: number, message: string): ApiError {
  return new ApiError(message, { status, type: 'invalid_request_error', code: OF_HTTP[status] ?? null });
}

function ofLibrary(error: CflowError): ApiError {
  const details = OF_LIBRARY[error.code];
  if (!details || error.details.file !== undefined) {
    return new ApiError(
      'internal error; the log of the server has more',
      { status: 500, type: 'server_error' },
      error,
    );
  }
  const { field } = error.details;
  const param = requestField(field);
  const beyond = error.code === 'LIMIT_EXCEEDED' && (field === 'ids' || field === 'maxTokens');
  const code = beyond ? 'context_length_exceeded' : (details.code ?? null);
  const places = [param, field?.startsWith('#') ? field : undefined].filter((place) => place != null);
  const message = [...places, error.problem].join(': ');
  return new ApiError(message, { ...details, code, param }, error);
}

interface SchemaIssue {
  readonly instancePath: string;
  readonly message?: string;
  readonly params?: unknown;
}

/** The first of what a schema objects to, by the name that the client has for it. */
function ofSchema(issues: readonly SchemaIssue[]): ApiError {
  const [first] = issues;
  const keys = (first?.params as { keys?: readonly string[] } | undefined)?.keys ?? [];
  const path = fieldPath(first?.instancePath ?? '', keys[0]);
  const problem = keys.length > 0 ? 'unknown field' : (first?.message ?? 'not valid');
  return badRequest(path ? `${path}: ${problem}` : problem, path || null);
}

/** `/messages/0/content` as `messages[0].content`. */
function fieldPath(pointer: string, key: string | undefined): string {
  const names = [...pointer.split('/').filter(Boolean), ...(key === undefined ? [] : [key])];
  return names.reduce((path, name) => {
    if (/^\d+$/.test(name)) return `${path}[${name}]`;
    return path ? `${path}.${name}` : name;
  }, '');
}
