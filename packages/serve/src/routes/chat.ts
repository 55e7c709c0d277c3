import type { GrammarSpec } from '@cflow/runtime-native';
import type { FastifyInstance } from 'fastify';
import type { ZodTypeProvider } from 'fastify-type-provider-zod';
import { badRequest } from '../errors.js';
import { CHAT } from '../formats.js';
import type { Task } from '../generate.js';
import type { Lease } from '../pool.js';
import { type ChatRequest, chatAnswer, chatRequest } from '../schema/chat.js';
import { errorSchema } from '../schema/common.js';
import type { Service } from '../service.js';
import { answer, generationOf, takePlace } from './answers.js';

/** POST /v1/chat/completions. */
export function chatRoute(app: FastifyInstance, service: Service): void {
  app.withTypeProvider<ZodTypeProvider>().post(
    '/v1/chat/completions',
    {
      schema: { body: chatRequest, response: { 200: chatAnswer, default: errorSchema } },
      onRequest: async () => service.admission.check(),
      preHandler: takePlace(service),
    },
    (request, reply) =>
      answer(service, reply, request.body, CHAT, (lease, signal) =>
        taskOf(service, request.body, lease, signal),
      ),
  );
}

async function taskOf(
  service: Service,
  request: ChatRequest,
  lease: Lease,
  signal: AbortSignal,
): Promise<Task> {
  const { logprobs: wanted, top_logprobs: top } = request;
  if (top != null && !wanted) throw badRequest('top_logprobs: belongs to logprobs', 'top_logprobs');
  const { ids, reader } = await lease.encoder.chat(request, signal);
  const generation = generationOf(
    service,
    request,
    request.max_completion_tokens ?? request.max_tokens ?? undefined,
  );
  const logprobs = wanted ? (top ?? 0) : undefined;
  const options = { ...generation.options, logprobs, grammar: grammarOf(request.response_format) };
  return { ...generation, prompts: [ids], reader, signal, options };
}

/** The grammar that a format asks for; undefined for text. */
function grammarOf(format: ChatRequest['response_format']): GrammarSpec | undefined {
  if (format?.type === 'json_schema') return { jsonSchema: format.json_schema.schema };
  return format?.type === 'json_object' ? { jsonSchema: { type: 'object' } } : undefined;
}
