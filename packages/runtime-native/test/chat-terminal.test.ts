/** cflow-chat at a terminal and in a pipe. It runs as a process of its own: the build of this package. */
import { execFile, spawn } from 'node:child_process';
import { cp, mkdtemp, readdir, readFile, rm, stat, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { parseModelConfig } from '@cflow/format';
import { atTerminal } from '@cflow/test-kit/terminal';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { CHARACTERS } from './character-tokenizer.js';
import { modelBytes, randomTensors } from './model-file.js';

const path = (relative: string) => fileURLToPath(new URL(relative, import.meta.url));
const COMMAND = path('../bin/cflow-chat.js');
const STORIES = path('../../../models/stories-arch2_4');
const TEMPLATE =
  '{% if enable_thinking is defined %}{% endif %}{% for m in messages %}({{ m.role }}:{{ m.content }}){% endfor %}';
/** Large enough for an answer to be interrupted. */
const SLOW = parseModelConfig({
  name: 'slow',
  family: 'cflow',
  hiddenDim: 256,
  vocabSize: 97,
  contextLength: 4096,
  normEps: 1e-6,
  combineStyle: 'sequential',
  layers: Array.from({ length: 4 }, () => ({
    attention: { heads: 8, kvHeads: 8, headDim: 32, scale: 0.2 },
    ffn: { dim: 512, activation: 'gelu' },
  })),
});

let directory: string;
let model: string;
let environment: Record<string, string>;
beforeAll(async () => {
  directory = await mkdtemp(join(tmpdir(), 'cflow-chat-terminal-'));
  model = join(directory, 'model.cflow');
  const tokenizer = {
    tokenizerJson: JSON.stringify(CHARACTERS),
    tokenizerConfigJson: JSON.stringify({ eos_token: '</s>' }),
    vocabSize: 97,
    chatTemplate: TEMPLATE,
  };
  const tensors = randomTensors(SLOW, (x) => x / 16);
  await writeFile(model, await modelBytes(SLOW, tensors, { tokenizer }));
  await writeFile(join(directory, 'yes.gbnf'), 'root ::= "YES"');
  await writeFile(join(directory, 'long.gbnf'), 'root ::= "A"{1500}');
  environment = {
    XDG_STATE_HOME: join(directory, 'state'),
    XDG_CACHE_HOME: join(directory, 'cache'),
    CFLOW_ISA: 'scalar',
  };
});
afterAll(() => rm(directory, { recursive: true }));

const grammar = (name: string) => ['--grammar', join(directory, name)];
const chatting = (...args: string[]) => atTerminal([process.execPath, COMMAND, model, ...args], environment);
/** Messages of a conversation that was saved. */
const saved = async (name: string) => JSON.parse(await readFile(join(directory, name), 'utf8')).messages;

describe('at a terminal', () => {
  it('answers, has commands, and keeps what was typed for the next time', async () => {
    const terminal = chatting(...grammar('yes.gbnf'));
    await terminal.shows(/> /);
    terminal.type('hi\r');
    await terminal.shows(/\nYES\r\n[^\n]*> /);
    terminal.type('/help\r');
    await terminal.shows(/\/think on\|off/);
    terminal.type('/stats\r');
    await terminal.shows(/answer +\d+ tokens, [\d.]+ tokens\/s/);
    terminal.type('/nonsense\r');
    await terminal.shows(/cflow-chat: note: there is no command \/nonsense/);
    terminal.type('/system Be brief.\r');
    await terminal.shows(/system message set/);
    terminal.type(`/save ${join(directory, 'a.json')}\r`);
    await terminal.shows(/3 messages in/);
    terminal.type('/quit\r');
    expect(await terminal.exit).toBe(0);
    expect(await saved('a.json')).toEqual([
      { role: 'system', content: 'Be brief.' },
      { role: 'user', content: 'hi' },
      { role: 'assistant', content: 'YES' },
    ]);

    const again = chatting(...grammar('yes.gbnf'), '--load', join(directory, 'a.json'));
    await again.shows(/> /);
    // Three lines up: /quit, /save, /system.
    again.type('\x1b[A\x1b[A\x1b[A');
    await again.shows(/\/system Be brief\./);
    again.type('\x15/reset\r');
    await again.shows(/a new conversation/);
    again.type(`/save ${join(directory, 'b.json')}\r`);
    await again.shows(/0 messages in/);
    again.type('\x04');
    expect(await again.exit).toBe(0);
    const { mode } = await stat(join(directory, 'state/cflow/chat-history'));
    expect(mode & 0o777).toBe(0o600);
  });

  it('takes pasted lines as one message', async () => {
    const terminal = chatting(...grammar('yes.gbnf'), '--no-history');
    await terminal.shows(/> /);
    terminal.type('\x1b[200~one\r\n\ttwo\rthree\x1b[201~');
    await terminal.shows(/one␤␉two␤three/);
    terminal.type('!\r');
    await terminal.shows(/YES/);
    terminal.type(`/save ${join(directory, 'c.json')}\r`);
    await terminal.shows(/2 messages in/);
    terminal.type('\x04');
    expect(await terminal.exit).toBe(0);
    expect((await saved('c.json'))[0]).toEqual({ role: 'user', content: 'one\n\ttwo\nthree!' });
  });

  it('Ctrl-C ends an answer and only it; twice at an empty prompt it leaves', async () => {
    const terminal = chatting(...grammar('long.gbnf'), '--no-history');
    await terminal.shows(/> /);
    terminal.type('hi\r');
    await terminal.shows(/\nAAA/);
    terminal.type('\x03');
    await terminal.shows(/\r\n[^\n]*> /);
    terminal.type(`/save ${join(directory, 'd.json')}\r`);
    await terminal.shows(/2 messages in/);
    terminal.type('half a line\x03');
    await terminal.shows(/\^C\r\n[^\n]*> /);
    terminal.type('\x03');
    await terminal.shows(/Ctrl-C again to leave/);
    terminal.type('\x03');
    expect(await terminal.exit).toBe(0);
    const [, answer] = await saved('d.json');
    expect(answer.content).toMatch(/^A+$/);
    expect(answer.content.length).toBeLessThan(1500);
  });

  it('has colours unless NO_COLOR says otherwise', async () => {
    for (const [more, wanted] of [
      [{}, true],
      [{ NO_COLOR: '1' }, false],
    ] as const) {
      const terminal = atTerminal([process.execPath, COMMAND, model], { ...environment, ...more });
      await terminal.shows(/> /);
      terminal.type('\x04');
      await terminal.exit;
      expect(terminal.output().includes('\x1b[2m')).toBe(wanted);
    }
  });
});

/** What a pipe gives: stdout, stderr, exit code. */
async function piped(args: readonly string[], input: string) {
  const child = spawn(process.execPath, [COMMAND, ...args], { env: { ...process.env, ...environment } });
  child.stdin.end(input);
  const [out, err] = await Promise.all([text(child.stdout), text(child.stderr)]);
  const code = child.exitCode ?? (await new Promise<number>((resolve) => child.once('close', resolve)));
  return { code, out, err };
}

describe('in a pipe', () => {
  it('answers line by line, without a prompt, and goes on after an error of one line', async () => {
    const { code, out, err } = await piped(
      [model, ...grammar('yes.gbnf')],
      'a\n\n/think maybe\n//b\n/think off\n',
    );
    expect({ code, out }).toEqual({ code: 0, out: 'YES\nYES\n' });
    expect(err).toBe('cflow-chat: note: say /think on or /think off\ncflow-chat: note: reasoning off\n');
    const json = await piped([model, '--json', ...grammar('yes.gbnf')], 'a\n');
    expect(json).toEqual({ code: 0, out: '{"role":"assistant","content":"YES"}\n', err: '' });
  });

  it.each([
    [['nowhere'], 3, /^cflow-chat: error: nowhere: no such file or directory \(name a \.cflow/],
    [['nowhere.cflow'], 3, /nowhere\.cflow/],
    [[], 2, /^cflow-chat: error: /],
    [['m.cflow', '--top-k', 'x'], 2, /^cflow-chat: error: --top-k: not a number/],
    [['m.cflow', '--load', 'nowhere.json'], 3, /^cflow-chat: error: nowhere\.json: cannot be read: ENOENT/],
  ])('%j is one error', async (args, code, message) => {
    const got = await piped(args, '');
    expect(got).toEqual({ code, out: '', err: expect.stringMatching(message) });
    expect(got.err.trimEnd()).not.toContain('\n');
  });
});

describe('a checkpoint', () => {
  it('is converted once, as long as it stays the same', async () => {
    const checkpoint = join(directory, 'stories-chat');
    await cp(STORIES, checkpoint, { recursive: true });
    const none = await piped([checkpoint], 'Once\n');
    expect(none).toMatchObject({ code: 8, err: expect.stringContaining('the file has no chat template') });
    await writeFile(
      join(checkpoint, 'chat_template.jinja'),
      '{% for m in messages %}{{ m.content }}{% endfor %}',
    );
    const args = [checkpoint, '--max-tokens', '8', '--temperature', '0'];
    const first = await piped(args, 'Once upon a time\n');
    expect(first).toMatchObject({ code: 0, out: expect.stringMatching(/\S/) });
    const folder = join(directory, 'cache/cflow/models');
    const files = await readdir(folder);
    // One of the checkpoint before it had a template.
    expect(files).toHaveLength(2);
    for (const file of files) expect(file).toMatch(/^stories-chat-q4_0-[0-9a-f]{12}\.cflow$/);
    const times = async () =>
      Promise.all(files.map(async (file) => (await stat(join(folder, file))).mtimeMs));
    const before = await times();
    expect((await piped(args, 'Once upon a time\n')).out).toBe(first.out);
    expect(await times()).toEqual(before);
  });

  it('that cannot be converted is one error, of the conversion', async () => {
    const run = promisify(execFile)(process.execPath, [COMMAND, directory], {
      env: { ...process.env, ...environment },
    });
    const { code, stderr } = await run.then(
      () => ({ code: 0, stderr: '' }),
      (error: { code: number; stderr: string }) => error,
    );
    expect(code).toBeGreaterThan(0);
    expect(stderr).toMatch(/^cflow-convert: error: [^\n]*\n$/);
  });
});
