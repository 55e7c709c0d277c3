/** The options of cflow-serve and their checks. */
import { basename } from 'node:path';
import { CflowError } from '@cflow/format';
import { check, count, packageVersion } from '@cflow/format/node';
import { parseBytes } from '#cli-kit/bytes.js';
import { commandLine } from '#cli-kit/command.js';
import { refuseHubName } from '#cli-kit/usage.js';
import { isLoopback } from './auth.js';
import { LIMITS } from './limits.js';
import type { ModelSpec } from './pool.js';
import type { ServerOptions } from './server.js';

const LOG_LEVELS = ['silent', 'error', 'warn', 'info', 'debug'] as const;

const OPTIONS = {
  host: {
    type: 'string',
    requiresArg: true,
    default: '127.0.0.1',
    describe: 'address to bind to; another than this machine’s wants --api-key',
  },
  port: { type: 'number', requiresArg: true, default: 8080, describe: '0 = a free one' },
  'api-key': {
    type: 'string',
    array: true,
    nargs: 1,
    requiresArg: true,
    describe:
      'a key that requests must have; repeatable; also CFLOW_API_KEY, which no list of processes shows',
  },
  'cors-origin': {
    type: 'string',
    array: true,
    nargs: 1,
    requiresArg: true,
    describe: 'an origin whose pages may use the server; repeatable [default: none]',
  },
  memory: {
    type: 'string',
    requiresArg: true,
    describe:
      'what the process may use, as 2GiB; models are unloaded to keep to it [default: most of what is available]',
  },
  threads: { type: 'number', requiresArg: true, describe: 'threads that compute [default: CPUs allowed]' },
  context: {
    type: 'number',
    requiresArg: true,
    describe: 'positions to keep room for within --memory [default: 2048]',
  },
  arithmetic: {
    choices: ['q8', 'f32'] as const,
    describe: 'int8 or exact f32 activations [default: q8 for quantized files]',
  },
  cache: {
    choices: ['f16', 'f32'] as const,
    describe: 'storage of keys and values [default: f16 with q8 arithmetic]',
  },
  'prefix-cache': {
    type: 'string',
    requiresArg: true,
    default: '256MiB',
    describe: 'KV caches that each model keeps for prompts that begin alike; 0 = none',
  },
  'max-sequences': {
    type: 'number',
    requiresArg: true,
    default: LIMITS.maxSequences,
    describe: 'sequences that a model generates at once',
  },
  'max-queue': {
    type: 'number',
    requiresArg: true,
    default: LIMITS.maxQueue,
    describe: 'requests that may wait; more are answered with 429',
  },
  'max-tokens': {
    type: 'number',
    requiresArg: true,
    describe: 'most tokens of an answer [default: what the context has room for]',
  },
  'max-body': { type: 'string', requiresArg: true, default: '4MiB', describe: 'most bytes of a request' },
  timeout: {
    type: 'number',
    requiresArg: true,
    default: LIMITS.requestMs / 1000,
    describe: 'seconds that a request may take, waiting included',
  },
  drain: {
    type: 'number',
    requiresArg: true,
    default: LIMITS.drainMs / 1000,
    describe: 'seconds that running requests get after SIGTERM',
  },
  'log-level': {
    choices: LOG_LEVELS,
    default: 'info' as const,
    describe: 'what is logged on stderr, a line of JSON each',
  },
  'log-prompts': { type: 'boolean', default: false, describe: 'log the bodies of requests too' },
} as const;

/** The parser of the command line. */
export const parser = () =>
  commandLine('cflow-serve', packageVersion(import.meta.url), 'cflow-serve model.cflow --port 8080')
    .command('$0 <models..>', 'Serve .cflow or .vflow models by OpenAI’s API', (command) =>
      command.positional('models', {
        type: 'string',
        array: true,
        demandOption: true,
        describe: 'files; NAME=FILE gives one a name, else it is that of the file',
      }),
    )
    .options(OPTIONS);

/** The command line, parsed. */
export type Arguments = Awaited<ReturnType<ReturnType<typeof parser>['parse']>> & { models: string[] };

/** What the server is built with. @throws CflowError USAGE */
export function serverOptions(args: Arguments, env: NodeJS.ProcessEnv): ServerOptions {
  for (const name of [
    'max-sequences',
    'max-queue',
    'max-tokens',
    'timeout',
    'drain',
    'threads',
    'context',
  ] as const) {
    if (args[name] !== undefined) check(`--${name}`, args[name], count);
  }
  const apiKeys = [...(args.apiKey ?? []), ...(env.CFLOW_API_KEY ? [env.CFLOW_API_KEY] : [])];
  if (apiKeys.includes('')) throw new CflowError('USAGE', 'a key must not be empty', { field: '--api-key' });
  if (!isLoopback(args.host) && apiKeys.length === 0) {
    throw new CflowError('USAGE', `${args.host} is reachable from other machines`, {
      field: '--host',
      remedy: 'give --api-key, or CFLOW_API_KEY in the environment',
    });
  }
  const { threads, context, arithmetic, cache } = args;
  return {
    models: args.models.map(modelSpec),
    apiKeys,
    corsOrigins: args.corsOrigin,
    memory: args.memory === undefined ? undefined : parseBytes(args.memory, '--memory'),
    open: { threads, context, arithmetic, cache },
    prefixBytes: args.prefixCache === '0' ? 0 : parseBytes(args.prefixCache, '--prefix-cache'),
    maxSequences: args.maxSequences,
    maxQueue: args.maxQueue,
    maxTokens: args.maxTokens,
    bodyBytes: parseBytes(args.maxBody, '--max-body'),
    requestMs: 1000 * args.timeout,
    drainMs: 1000 * args.drain,
    log: args.logLevel === 'silent' ? undefined : { level: args.logLevel, stream: process.stderr },
    logPrompts: args.logPrompts,
  };
}

/** `NAME=FILE`, or a file that is named without its ending. */
function modelSpec(argument: string): ModelSpec {
  const [, id, path] = /^([^=/]+)=(.+)$/.exec(argument) ?? [];
  const file = path ?? argument;
  refuseHubName(file);
  return { id: id ?? basename(file).replace(/\.[cv]flow$/, ''), path: file };
}
