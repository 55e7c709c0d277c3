/** What becomes of the commands when their output cannot be written; as processes, as users run them. */
import { execFile } from 'node:child_process';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';

const root = fileURLToPath(new URL('..', import.meta.url));
const bin = (pack: string, name: string) => join(root, 'packages', pack, 'bin', `${name}.js`);
const BINS = {
  'cflow-run': bin('runtime-native', 'cflow-run'),
  'cflow-convert': bin('convert', 'cflow-convert'),
  'cflow-inspect': bin('inspect', 'cflow-inspect'),
  'cflow-bench': bin('bench', 'cflow-bench'),
};
type Name = keyof typeof BINS;

let directory: string;
let model: string;

/** A line of bash; its exit code is that of the first command of the pipe. */
function bash(line: string, name: Name, args: readonly string[]) {
  const script = `"$@" ${line}; exit "\${PIPESTATUS[0]}"`;
  return new Promise<{ code: number; out: string; err: string }>((resolve) => {
    const argv = ['-c', script, 'bash', process.execPath, BINS[name], ...args];
    execFile('bash', argv, { cwd: directory }, (error, out, err) => {
      resolve({ code: error ? Number(error.code) : 0, out, err });
    });
  });
}

beforeAll(async () => {
  directory = await mkdtemp(join(tmpdir(), 'cflow-output-'));
  model = join(directory, 'model.cflow');
  const done = await bash('', 'cflow-convert', [join(root, 'models/stories-arch2_4'), model]);
  expect(done).toMatchObject({ code: 0, err: '' });
});
afterAll(() => rm(directory, { recursive: true }));

const RUN = ['--ids', '1,2', '--max-tokens', '5', '--temperature', '0'];
/** Every kind of output that each command has. */
const OUTPUTS: readonly [Name, (model: string) => string[]][] = [
  ['cflow-run', () => ['--help']],
  ['cflow-run', (file) => [file, ...RUN]],
  ['cflow-run', (file) => [file, ...RUN, '--json']],
  ['cflow-run', (file) => [file, '--prompt', 'x', '--max-tokens', '5', '--seed', '1']],
  ['cflow-convert', () => ['--help']],
  ['cflow-convert', (file) => [file, `${file}.full.vflow`, '--overwrite']],
  ['cflow-convert', (file) => [file, `${file}.json.vflow`, '--overwrite', '--json']],
  ['cflow-convert', () => ['--model', 'arch5', '--dry-run']],
  ['cflow-inspect', () => ['--help']],
  ['cflow-inspect', (file) => [file]],
  ['cflow-inspect', (file) => [file, '--json']],
  ['cflow-bench', () => ['--help']],
  ['cflow-bench', () => ['synth', '--help']],
  ['cflow-bench', (file) => ['synth', `${file}.q4`, '--format', 'cflow', '--layers', '1', '--overwrite']],
];

describe.each(OUTPUTS)('%s', (name, args) => {
  it(`${args('FILE').join(' ')}: a full device is one line and exit code 11`, async () => {
    expect(await bash('>/dev/full', name, args(model))).toEqual({
      code: 11,
      out: '',
      err: `${name}: error: stdout: cannot write: ENOSPC (make room, or send the output elsewhere)\n`,
    });
  });

  it(`${args('FILE').join(' ')}: a reader that leaves is no failure`, async () => {
    expect(await bash('| true', name, args(model))).toEqual({ code: 0, out: '', err: '' });
  });
});

describe('stderr that nobody reads', () => {
  it.each([
    ['cflow-run', 2, ['--threads', '0', '--ids', '1']],
    ['cflow-run', 0, [...RUN, '--profile']],
    ['cflow-run', 3, ['missing.cflow', ...RUN]],
    ['cflow-convert', 2, []],
    ['cflow-inspect', 2, ['--tiles', '0']],
    ['cflow-bench', 2, ['nothing']],
  ] as [Name, number, string[]][])('leaves %s its exit code %i', async (name, code, args) => {
    const argv = args[0]?.endsWith('.cflow') ? args : [model, ...args];
    for (const line of [
      '2>&1 >/dev/null | true',
      '2>&1 >/dev/null | sleep 0',
      '2>/dev/full >/dev/null',
      '2>&-',
    ])
      expect([line, (await bash(line, name, argv)).code]).toEqual([line, code]);
  });
});

describe('what the parser objects to', () => {
  it.each([
    ['cflow-run', ['FILE', '--ids', '1', '--weights', 'foo']],
    ['cflow-convert', ['a', 'b', '--dtype', 'foo']],
    ['cflow-bench', ['decode', 'FILE', '--engine', 'foo']],
    ['cflow-inspect', ['FILE', '--foo']],
  ] as [Name, string[]][])('is one line of %s', async (name, args) => {
    const { code, err } = await bash('', name, args);
    expect([code, err.split('\n').length]).toEqual([2, 2]);
    expect(err).not.toContain('\\u000a');
    expect(err).toContain('foo');
    expect(err).toContain(`(see ${name} --help)`);
  });
});
