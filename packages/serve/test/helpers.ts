/** A model that continues stories, with a chat template, behind a server. */
import { cp, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { convert } from '@cflow/convert';
import { onTestFinished } from 'vitest';
import { type CflowServer, createServer, type ServerOptions } from '../src/server.js';

export const CHECKPOINT = fileURLToPath(new URL('../../../models/stories-arch2_4', import.meta.url));
/** Messages one behind the other, each ended by a line; a story goes on behind the last. */
const TEMPLATE = `{% for message in messages %}{{ message.content }}{% if not loop.last %}
{% endif %}{% endfor %}`;

/** In the manner of Qwen: tools, calls between tags, reasoning. */
const TOOLS = `{% if tools %}Tools: {{ tools | tojson }}
{% endif %}{% for message in messages %}{{ message.role }}: {{ message.content }}
{% for call in message.tool_calls or [] %}<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{% endfor %}{% endfor %}{# <think> </think> #}`;
const TEMPLATES = { chat: TEMPLATE, tools: TOOLS };

let folder: Promise<string> | undefined;

/** A folder of this test file with `stories.cflow`, and with `chat.cflow` and `tools.cflow`, which have chat templates; removed at its end. */
export function models(): Promise<string> {
  folder ??= make();
  return folder;
}

async function make(): Promise<string> {
  const into = await mkdtemp(join(tmpdir(), 'cflow-serve-'));
  process.on('exit', () => void rm(into, { recursive: true, force: true }));
  const checkpoint = join(into, 'checkpoint');
  await cp(CHECKPOINT, checkpoint, { recursive: true });
  await convert({ source: checkpoint, output: join(into, 'stories.cflow') });
  for (const [name, template] of Object.entries(TEMPLATES)) {
    await writeFile(join(checkpoint, 'chat_template.jinja'), template);
    await convert({ source: checkpoint, output: join(into, `${name}.cflow`) });
  }
  await rm(checkpoint, { recursive: true });
  return into;
}

export interface Running extends CflowServer {
  readonly url: string;
  readonly folder: string;
}

/** A server that listens until the test ends. */
export async function serve(options: Partial<ServerOptions> = {}): Promise<Running> {
  const home = await models();
  const known = ['stories', 'chat'].map((id) => ({ id, path: join(home, `${id}.cflow`) }));
  const server = await createServer({ models: known, open: { threads: 1 }, drainMs: 1000, ...options });
  onTestFinished(() => server.drain());
  const url = await server.app.listen({ host: '127.0.0.1', port: 0 });
  return { ...server, url, folder: home };
}

export const ONCE = 'Once upon a time';

/** Sends a document. */
export const post = (url: string, body: unknown, init: RequestInit = {}): Promise<Response> =>
  fetch(url, {
    method: 'POST',
    body: typeof body === 'string' ? body : JSON.stringify(body),
    ...init,
    headers: { 'content-type': 'application/json', ...init.headers },
  });

/** The documents of a stream of events, without its end. */
export async function events(response: Response): Promise<Record<string, unknown>[]> {
  const lines = (await response.text()).split('\n\n').filter((line) => line.startsWith('data: '));
  if (lines.at(-1) === 'data: [DONE]') lines.pop();
  return lines.map((line) => JSON.parse(line.slice('data: '.length)) as Record<string, unknown>);
}

/** Resolves once `holds` does. */
export async function until(holds: () => boolean): Promise<void> {
  while (!holds()) await new Promise((resolve) => setTimeout(resolve, 5));
}
