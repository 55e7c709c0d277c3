import type { FastifyInstance } from 'fastify';
import type { ZodTypeProvider } from 'fastify-type-provider-zod';
import { z } from 'zod';
import type { ModelPool } from '../pool.js';
import { errorSchema } from '../schema/common.js';
import type { Service } from '../service.js';

const model = z.object({
  id: z.string(),
  object: z.literal('model'),
  created: z.int(),
  owned_by: z.literal('cflow'),
  context_length: z.int().describe('Tokens of prompt and answer'),
  chat: z.boolean().describe('Whether it has a chat template'),
  loaded: z.boolean().describe('Whether it is in memory'),
});

/** GET /v1/models and /v1/models/NAME. */
export function modelRoutes(app: FastifyInstance, { pool }: Service): void {
  const typed = app.withTypeProvider<ZodTypeProvider>();
  const started = Math.floor(Date.now() / 1000);
  const shown = ({ info, loaded }: ModelPool['models'][number]) => ({
    id: info.id,
    object: 'model' as const,
    created: started,
    owned_by: 'cflow' as const,
    context_length: info.contextLength,
    chat: info.chat,
    loaded: loaded !== undefined,
  });
  typed.get(
    '/v1/models',
    {
      schema: {
        response: {
          200: z.object({ object: z.literal('list'), data: z.array(model) }),
          default: errorSchema,
        },
      },
    },
    async () => ({ object: 'list' as const, data: pool.models.map(shown) }),
  );
  typed.get(
    '/v1/models/:model',
    { schema: { params: z.object({ model: z.string() }), response: { 200: model, default: errorSchema } } },
    async ({ params }) => {
      const { id } = pool.info(params.model);
      return shown(pool.models.find(({ info }) => info.id === id)!);
    },
  );
}
