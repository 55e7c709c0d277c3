import type { FastifyInstance } from 'fastify';
import type { ZodTypeProvider } from 'fastify-type-provider-zod';
import { z } from 'zod';
import { shuttingDown } from '../errors.js';
import { errorSchema } from '../schema/common.js';
import type { Service } from '../service.js';

const OPEN = { config: { open: true } };

/** What probes and monitoring read: /health, /metrics, /openapi.json. */
export function statusRoutes(app: FastifyInstance, { admission, metrics }: Service): void {
  const typed = app.withTypeProvider<ZodTypeProvider>();
  typed.get(
    '/health',
    { ...OPEN, schema: { response: { 200: z.object({ status: z.literal('ok') }), default: errorSchema } } },
    async () => {
      if (admission.draining) throw shuttingDown();
      return { status: 'ok' as const };
    },
  );
  app.get('/metrics', { schema: { hide: true } as object }, async (_request, reply) => {
    return reply.type(metrics.registry.contentType).send(await metrics.registry.metrics());
  });
  app.get('/openapi.json', { schema: { hide: true } as object }, async () => app.swagger());
}
