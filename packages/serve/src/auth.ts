/** Who may use the server. */
import { createHash, timingSafeEqual } from 'node:crypto';
import type { FastifyRequest } from 'fastify';
import { ApiError } from './errors.js';

const digest = (text: string) => createHash('sha256').update(text).digest();

/**
 * A hook that refuses requests without one of the keys. Digests of equal length are compared, all of them and in
 * constant time, so that the time says nothing about a key.
 * @throws ApiError 401
 */
export function checkKeys(keys: readonly string[]): (request: FastifyRequest) => Promise<void> {
  const known = keys.map(digest);
  return async ({ headers }) => {
    const [, given] = /^Bearer +(.+)$/i.exec(headers.authorization ?? '') ?? [];
    const sent = digest(given ?? '');
    const matches = known.map((key) => timingSafeEqual(key, sent));
    if (given !== undefined && matches.includes(true)) return;
    const message =
      given === undefined ? 'no API key: send "Authorization: Bearer KEY"' : 'the API key is wrong';
    throw new ApiError(message, { status: 401, type: 'authentication_error', code: 'invalid_api_key' });
  };
}

const LOOPBACK = /^(localhost|127(\.\d+){3}|\[::1\])(:\d+)?$/i;

/** Whether an address is this machine's own. */
export const isLoopback = (host: string): boolean => LOOPBACK.test(host) || host === '::1';

/**
 * A hook for a server without keys: a page on the internet whose name resolves to 127.0.0.1 must not get through
 * (DNS rebinding). It cannot forge the Host header.
 * @throws ApiError 403
 */
export async function checkHost({ headers }: FastifyRequest): Promise<void> {
  if (isLoopback(headers.host ?? '')) return;
  throw new ApiError('without --api-key, only requests to localhost are answered', {
    status: 403,
    type: 'permission_error',
    code: 'host_not_allowed',
  });
}
