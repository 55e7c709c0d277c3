/** The server: routes and what every request passes. */
import type { Socket } from 'node:net';
import { freemem } from 'node:os';
import { packageVersion } from '@cflow/format/node';
import { type OpenModelOptions, threadBudget } from '@cflow/runtime-native';
import { nativeMachine } from '@cflow/runtime-native/internal/native/machine.js';
import cors from '@fastify/cors';
import swagger from '@fastify/swagger';
import {
  type FastifyBaseLogger,
  type FastifyInstance,
  type FastifyReply,
  type FastifyRequest,
  fastify,
  LogController,
} from 'fastify';
import { jsonSchemaTransform, serializerCompiler, validatorCompiler } from 'fastify-type-provider-zod';
import { Admission } from './admission.js';
import { checkHost, checkKeys } from './auth.js';
import { ofHttp, toApiError } from './errors.js';
import { LIMITS } from './limits.js';
import { Metrics } from './metrics.js';
import { figuresOf, ModelPool, type ModelSpec, readModels } from './pool.js';
import { chatRoute } from './routes/chat.js';
import { completionsRoute } from './routes/completions.js';
import { modelRoutes } from './routes/models.js';
import { pageRoutes } from './routes/page.js';
import { statusRoutes } from './routes/status.js';
import type { Service } from './service.js';

/** Options of a server. Absent limits are those of `LIMITS`. */
export interface ServerOptions {
  readonly models: readonly ModelSpec[];
  /** Keys that requests must have one of; without any, only requests to this machine's own address are answered. */
  readonly apiKeys?: readonly string[] | undefined;
  /** Origins whose pages may use the server. */
  readonly corsOrigins?: readonly string[] | undefined;
  /** How models are opened. */
  readonly open?: OpenModelOptions | undefined;
  /** Bytes that the models may take together; absent = most of what the system has left. */
  readonly memory?: number | undefined;
  readonly maxSequences?: number | undefined;
  readonly maxQueue?: number | undefined;
  /** Bytes of KV caches that each model keeps for prompts that begin alike; absent = none. */
  readonly prefixBytes?: number | undefined;
  /** Most tokens of an answer; absent = as many as the context has room for. */
  readonly maxTokens?: number | undefined;
  readonly bodyBytes?: number | undefined;
  readonly requestMs?: number | undefined;
  readonly drainMs?: number | undefined;
  readonly stallMs?: number | undefined;
  /** Absent = nothing is logged. */
  readonly log?: { readonly level: string; readonly stream: { write(line: string): void } } | undefined;
  /** Log the messages and prompts of requests. */
  readonly logPrompts?: boolean | undefined;
}

/** A server that has not begun to listen. */
export interface CflowServer {
  readonly app: FastifyInstance;
  readonly service: Service;
  /** Ends it: no new requests, the running ones end or are ended, models are closed. */
  drain(): Promise<void>;
}

/** Share of the available memory that models take by default. */
const DEFAULT_SHARE = 0.8;
/** Bytes that this process could still take; Node knows the limits of cgroups from 20.13 on. */
const availableMemory = (): number => process.availableMemory?.() ?? freemem();

const MEASURED_BYTES = 256 * 2 ** 20;

/**
 * Builds a server and loads its first model; the others are loaded when they are asked for.
 * @throws CflowError as `readModels` and Model.open
 */
export async function createServer(options: ServerOptions): Promise<CflowServer> {
  const app = newApp(options);
  const service = await serviceOf(options, app.log);
  if (options.corsOrigins?.length) await app.register(cors, { origin: [...options.corsOrigins] });
  await app.register(swagger, {
    openapi: { info: { title: 'cflow', version: packageVersion(import.meta.url) } },
    transform: jsonSchemaTransform,
  });
  hook(app, service, options);
  for (const route of [chatRoute, completionsRoute, modelRoutes, statusRoutes, pageRoutes])
    route(app, service);
  await app.ready();
  (await service.pool.acquire(options.models[0]!.id)).release();
  return { app, service, drain: () => drain(app, service, options.drainMs ?? LIMITS.drainMs) };
}

function newApp({ log, bodyBytes = LIMITS.bodyBytes }: ServerOptions): FastifyInstance {
  const app = fastify({
    ...(log ? { logger: log } : {}),
    logController: new LogController({ disableRequestLogging: true }),
    bodyLimit: bodyBytes,
    requestTimeout: LIMITS.arrivalMs,
    clientErrorHandler: answerUnreadable,
    frameworkErrors: (error, _request, reply) => void sendError(error, reply),
    // When it closes, no request is left that anybody waits for; connections that are kept alive would hold it for a minute.
    forceCloseConnections: true,
    return503OnClosing: false,
  });
  app.setValidatorCompiler(validatorCompiler);
  app.setSerializerCompiler(serializerCompiler);
  // Browsers send text/plain to anybody without asking first.
  app.removeContentTypeParser('text/plain');
  app.setErrorHandler((error, request, reply) => {
    logError(error, request);
    return sendError(error, reply);
  });
  app.setNotFoundHandler((request, reply) =>
    sendError(ofHttp(404, `there is no ${request.method} ${request.url.split('?')[0]}`), reply),
  );
  return app;
}

async function serviceOf(options: ServerOptions, log: FastifyBaseLogger): Promise<Service> {
  const infos = await readModels(options.models);
  const metrics = new Metrics();
  const { maxSequences = LIMITS.maxSequences, maxQueue = LIMITS.maxQueue } = options;
  const pool = new ModelPool(infos, {
    room: options.memory ?? DEFAULT_SHARE * availableMemory(),
    open: { ...options.open, memory: options.memory },
    // Requests are counted at the door; a request may be several sequences.
    scheduler: {
      maxSequences,
      maxQueue: (maxSequences + maxQueue) * LIMITS.choices,
      cacheMemory: options.prefixBytes,
    },
    onChange: (event, id, ms) => {
      metrics.modelChanged(event, id);
      log.info({ model: id, ms: Math.round(ms) }, event);
    },
  });
  const admission = new Admission({
    requests: maxSequences + maxQueue,
    requestMs: options.requestMs ?? LIMITS.requestMs,
    stallMs: options.stallMs ?? LIMITS.stallMs,
    retryAfter: () => 1,
  });
  metrics.show({
    requests: () => admission.size,
    models: () => pool.models.flatMap(({ loaded }) => (loaded ? [figuresOf(loaded)] : [])),
  });
  const { headMs, aliveMs, stallMs } = LIMITS;
  return {
    pool,
    admission,
    metrics,
    limits: { headMs, aliveMs, stallMs: options.stallMs ?? stallMs, maxTokens: options.maxTokens },
    memoryBandwidth: await measuredBandwidth(options.open?.threads),
  };
}

/** Bytes per second; 0 without the native engine. The best of some runs: other load makes memory look slower. */
async function measuredBandwidth(threads: number | undefined): Promise<number> {
  const count = threads ?? (await threadBudget()).threads;
  const runs = await nativeMachine()?.readBandwidth(MEASURED_BYTES, count, 3);
  return runs ? 1e9 * Math.max(...runs) : 0;
}

function hook(
  app: FastifyInstance,
  service: Service,
  { apiKeys = [], logPrompts = false }: ServerOptions,
): void {
  const admit = apiKeys.length > 0 ? checkKeys(apiKeys) : checkHost;
  app.addHook('onRequest', async (request) => {
    if (!isOpen(request)) await admit(request);
  });
  app.addHook('onResponse', async (request, reply) => {
    const route = request.routeOptions.url ?? 'none';
    service.metrics.answered(route, reply.statusCode, reply.elapsedTime / 1000);
    const body = logPrompts ? { body: request.body } : {};
    request.log.info(
      { method: request.method, route, status: reply.statusCode, ms: Math.round(reply.elapsedTime), ...body },
      'request',
    );
  });
}

/** Routes that need no key: probes, and the page, which asks for one. */
const isOpen = ({ routeOptions }: FastifyRequest) =>
  (routeOptions.config as { open?: boolean }).open === true;

/** Faults of the server are logged whole. What is wrong with a request may quote it, so of that only the kind is. */
function logError(error: unknown, request: FastifyRequest): void {
  const { details, cause } = toApiError(error);
  if (details.status >= 500) request.log.error({ err: cause ?? error }, 'request failed');
  else request.log.info({ status: details.status, code: details.code }, 'request refused');
}

function sendError(error: unknown, reply: FastifyReply): FastifyReply {
  const { details, envelope, headers } = toApiError(error);
  return reply.code(details.status).headers(headers).send(envelope);
}

/** What is not HTTP, or takes too long to become a request. */
function answerUnreadable(error: NodeJS.ErrnoException, socket: Socket): void {
  if (error.code === 'ECONNRESET' || !socket.writable) return void socket.destroy();
  const [status, reason] = UNREADABLE[error.code ?? ''] ?? [400, 'Bad Request'];
  const body = JSON.stringify(ofHttp(status, reason).envelope);
  const head = `HTTP/1.1 ${status} ${reason}\r\ncontent-type: application/json; charset=utf-8\r\nconnection: close`;
  socket.end(`${head}\r\ncontent-length: ${Buffer.byteLength(body)}\r\n\r\n${body}`);
}

const UNREADABLE: Readonly<Record<string, readonly [number, string]>> = {
  HPE_HEADER_OVERFLOW: [431, 'Request Header Fields Too Large'],
  ERR_HTTP_REQUEST_TIMEOUT: [408, 'Request Timeout'],
};

async function drain(app: FastifyInstance, service: Service, ms: number): Promise<void> {
  await service.admission.drain(ms);
  await app.close();
  await service.pool.close();
}
