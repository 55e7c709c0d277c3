import type { FastifyInstance } from 'fastify';
import type { ZodTypeProvider } from 'fastify-type-provider-zod';
import { badRequest } from '../errors.js';
import { COMPLETION } from '../formats.js';
import type { Task } from '../generate.js';
import { LIMITS } from '../limits.js';
import type { Lease } from '../pool.js';
import { errorSchema } from '../schema/common.js';
import {
  type CompletionRequest,
  completionAnswer,
  completionRequest,
  DEFAULT_COMPLETION_TOKENS,
} from '../schema/completions.js';
import type { Service } from '../service.js';
import { answer, generationOf, takePlace } from './answers.js';

/** POST /v1/completions. */
export function completionsRoute(app: FastifyInstance, service: Service): void {
  app.withTypeProvider<ZodTypeProvider>().post(
    '/v1/completions',
    {
      schema: { body: completionRequest, response: { 200: completionAnswer, default: errorSchema } },
      onRequest: async () => service.admission.check(),
      preHandler: takePlace(service),
    },
    (request, reply) =>
      answer(service, reply, request.body, COMPLETION, (lease, signal) =>
        taskOf(service, request.body, lease, signal),
      ),
  );
}

async function taskOf(
  service: Service,
  request: CompletionRequest,
  lease: Lease,
  signal: AbortSignal,
): Promise<Task> {
  const prompts = await lease.encoder.completion(request, signal);
  const n = request.n ?? 1;
  if (prompts.length * n > LIMITS.choices) {
    throw badRequest(`${prompts.length} prompts × n = ${n} are more than ${LIMITS.choices} answers`, 'n');
  }
  const generation = generationOf(
    service,
    request,
    request.max_tokens ?? undefined,
    DEFAULT_COMPLETION_TOKENS,
  );
  const logprobs = request.logprobs ?? undefined;
  return { ...generation, prompts, signal, options: { ...generation.options, logprobs } };
}
