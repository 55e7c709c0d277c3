import type { FastifyInstance } from 'fastify';
import type { ZodTypeProvider } from 'fastify-type-provider-zod';
import { z } from 'zod';
import { shuttingDown } from '../errors.js';
import { figuresOf } from '../pool.js';
import { errorSchema } from '../schema/common.js';
import type { Service } from '../service.js';

const OPEN = { config: { open: true } };

const modelStats = z.object({
  id: z.string(),
  running: z.int().describe('Sequences that are being generated'),
  waiting: z.int().describe('Sequences that wait for a place'),
  batch_size: z.int().describe('Sequences of the last step'),
  prompt_tokens: z.int().describe('So far, as all that follow'),
  reused_tokens: z.int().describe('Prompt tokens that did not have to be computed again'),
  generated_tokens: z.int(),
  bytes_read: z.number().describe('Bytes of weights that were read from memory'),
  disk_bytes: z.number().describe('Bytes of weights that were read from disk'),
  expert_hits: z.int().describe('Experts that were in memory, of those that are fetched'),
  expert_misses: z.int().describe('Experts that were fetched from disk'),
});
const stats = z.object({
  memory_bandwidth: z.number().describe('Bytes per second that memory can be read with; 0 = not measured'),
  requests: z.int().describe('Requests that run or wait'),
  models: z.array(modelStats).describe('Those in memory'),
});

/** What probes and monitoring read: /health, /stats, /metrics, /openapi.json. */
export function statusRoutes(app: FastifyInstance, service: Service): void {
  const { admission, metrics } = service;
  const typed = app.withTypeProvider<ZodTypeProvider>();
  typed.get(
    '/health',
    { ...OPEN, schema: { response: { 200: z.object({ status: z.literal('ok') }), default: errorSchema } } },
    async () => {
      if (admission.draining) throw shuttingDown();
      return { status: 'ok' as const };
    },
  );
  typed.get('/stats', { schema: { response: { 200: stats, default: errorSchema } } }, () => statsOf(service));
  app.get('/metrics', { schema: { hide: true } as object }, async (_request, reply) => {
    return reply.type(metrics.registry.contentType).send(await metrics.registry.metrics());
  });
  app.get('/openapi.json', { schema: { hide: true } as object }, async () => app.swagger());
}

async function statsOf({
  pool,
  admission,
  metrics,
  memoryBandwidth,
}: Service): Promise<z.infer<typeof stats>> {
  const loaded = pool.models.flatMap((each) => each.loaded ?? []);
  const models = loaded.map(async (each) => {
    const { id, running, waiting, batchSize, reusedTokens, engine } = figuresOf(each);
    const tiers = engine.native?.tiers;
    return {
      id,
      running,
      waiting,
      batch_size: batchSize,
      ...(await metrics.tokens(id)),
      reused_tokens: reusedTokens,
      bytes_read: engine.native?.bytesRead ?? 0,
      disk_bytes: tiers?.bytesRead ?? 0,
      expert_hits: (tiers?.hits ?? 0) + (tiers?.predicted ?? 0),
      expert_misses: tiers?.misses ?? 0,
    };
  });
  return { memory_bandwidth: memoryBandwidth, requests: admission.size, models: await Promise.all(models) };
}
