/** Processes that render chat templates, within limits of time and memory. */
import { type ChildProcess, fork } from 'node:child_process';
import { CflowError } from '@cflow/format';

/** A message as templates see it. */
export interface RenderMessage {
  readonly role: string;
  readonly content: string | readonly { readonly type: string; readonly text?: string }[] | null;
  readonly [field: string]: unknown;
}

/** What to render. */
export interface RenderTask {
  readonly template: string;
  /** Absent: only find out whether the template can be used. */
  readonly messages?: readonly RenderMessage[] | undefined;
  readonly variables: Readonly<Record<string, unknown>>;
  readonly maxCharacters: number;
}

/**
 * `excess`: characters of a text that is too long to be handed over; `unusable`: what the template has that cannot be
 * parsed or evaluated; `refusal`: what it raised; `failure`: why it failed.
 */
export type RenderReply =
  | { readonly text: string }
  | { readonly excess: number }
  | { readonly unusable: string }
  | { readonly refusal: string }
  | { readonly failure: string };

/** What rendering may take, in milliseconds and MiB of heap. */
const RENDER_MS = 5_000;
const RENDER_MIB = 256;
/** Processes at most; more tasks wait. */
const PROCESSES = 2;
/** Milliseconds after which a process without a task ends. */
const IDLE_MS = 60_000;

/** @throws CflowError LIMIT_EXCEEDED */
export function overLimit(limit: string): CflowError {
  return new CflowError('LIMIT_EXCEEDED', `the chat template takes more than ${limit}`, {
    remedy: 'use --prompt without --chat, or correct the template',
  });
}

/** Processes without a task, the one used last at the end. */
const idle: ChildProcess[] = [];
let running = 0;
const waiting: (() => void)[] = [];

/**
 * Renders in a process that is kept for the next task, unless the template goes beyond its limits: then the process ends.
 * @throws CflowError LIMIT_EXCEEDED, INTERNAL
 */
export async function renderApart(task: RenderTask): Promise<RenderReply> {
  if (running >= PROCESSES) await new Promise<void>((resolve) => waiting.push(resolve));
  running++;
  try {
    const child = idle.pop() ?? start();
    child.removeAllListeners();
    return await replyOf(child, task);
  } finally {
    running--;
    waiting.shift()?.();
  }
}

function start(): ChildProcess {
  // Tests run from src/, where the script exists only compiled.
  const here = import.meta.url.replace(/\/src\/chat\/renderer\.ts$/, '/dist/chat/renderer.js');
  return fork(new URL('./renderer-process.js', here), {
    execArgv: [`--max-old-space-size=${RENDER_MIB}`],
    stdio: ['ignore', 'ignore', 'ignore', 'ipc'],
  });
}

async function replyOf(child: ChildProcess, task: RenderTask): Promise<RenderReply> {
  let timer: NodeJS.Timeout | undefined;
  hold(child);
  try {
    const reply = await new Promise<RenderReply>((resolve, reject) => {
      timer = setTimeout(() => reject(overLimit(`${RENDER_MS} ms`)), RENDER_MS);
      child.once('message', (message) => resolve(message as RenderReply));
      child.on('error', (cause) => reject(stopped(cause.message, cause)));
      child.once('exit', (code, signal) => reject(endedBy(code, signal)));
      child.send(task);
    });
    rest(child);
    return reply;
  } catch (error) {
    child.kill('SIGKILL');
    throw error;
  } finally {
    clearTimeout(timer);
  }
}

/** While a task runs, the process of the caller stays. */
function hold(child: ChildProcess): void {
  child.ref();
  child.channel?.ref();
}

/** A process at rest keeps nobody from ending, and ends itself some time. */
function rest(child: ChildProcess): void {
  child.removeAllListeners();
  const end = () => {
    const at = idle.indexOf(child);
    if (at >= 0) idle.splice(at, 1);
    child.kill('SIGKILL');
  };
  child.once('exit', end).once('error', end);
  child.unref();
  child.channel?.unref();
  idle.push(child);
  setTimeout(() => idle.includes(child) && end(), IDLE_MS).unref();
}

/** V8 aborts over memory: by a signal, or with a code over 128 where the system has none. */
function endedBy(code: number | null, signal: NodeJS.Signals | null): CflowError {
  return signal !== null || (code ?? 0) > 128
    ? overLimit(`${RENDER_MIB} MiB of memory`)
    : stopped(`exit code ${code}`);
}

function stopped(why: string, cause?: Error): CflowError {
  return new CflowError('INTERNAL', `the process of the chat template stopped: ${why}`, { cause });
}
