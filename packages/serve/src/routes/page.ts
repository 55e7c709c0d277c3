import { readFileSync } from 'node:fs';
import type { FastifyInstance } from 'fastify';

/** Path, file, type. */
const FILES = [
  ['/', 'index.html', 'text/html; charset=utf-8'],
  ['/page.css', 'page.css', 'text/css; charset=utf-8'],
  ['/page.js', 'page.js', 'text/javascript; charset=utf-8'],
] as const;

/** The page loads from this server alone, and nobody frames it. */
const POLICY = [
  "default-src 'none'",
  "script-src 'self'",
  "style-src 'self'",
  "connect-src 'self'",
  'img-src data:',
  "base-uri 'none'",
  "form-action 'self'",
  "frame-ancestors 'none'",
].join('; ');

/** The chat page, at `/`. It needs no key itself: it asks for one. */
export function pageRoutes(app: FastifyInstance): void {
  for (const [path, file, type] of FILES) {
    // Same place from src/routes and from dist/routes.
    const text = readFileSync(new URL(`../../page/${file}`, import.meta.url), 'utf8');
    app.get(path, { config: { open: true }, schema: { hide: true } as object }, async (_request, reply) =>
      reply
        .headers({
          'content-security-policy': POLICY,
          'x-content-type-options': 'nosniff',
          'cache-control': 'no-cache',
        })
        .type(type)
        .send(text),
    );
  }
}
