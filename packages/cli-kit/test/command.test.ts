import { CflowError } from '@cflow/format';
import { describe, expect, it } from 'vitest';
import { commandLine, parseArguments } from '../src/command.js';
import { runCommand } from '../src/output.js';
import { refuseHubName, usageError } from '../src/usage.js';

const parser = () =>
  commandLine('cflow-test', '1.2.3', 'cflow-test a.txt --max-tokens 3')
    .option('max-tokens', { type: 'number', requiresArg: true })
    .option('dtype', { choices: ['q4_0', 'f32'] as const })
    .command('$0 [file]', false, (y) => y.positional('file', { type: 'string' }))
    .command(
      'fail',
      'fails in its handler',
      (y) => y.option('deep', { type: 'boolean' }),
      () => {
        throw new TypeError('a defect');
      },
    );

/** What is printed on stdout, the exit code, and the line on stderr. */
async function outcome(...argv: string[]) {
  const out: string[] = [];
  const err: string[] = [];
  const collect = (into: string[]) => async (text: string) => void into.push(text);
  const work = async () => {
    const args = await parseArguments(parser(), argv, collect(out));
    if (args) out.push(JSON.stringify(args.maxTokens ?? null));
    return 0;
  };
  const exit = await runCommand('cflow-test', work, collect(err));
  return { exit, out: out.join(''), err: err.join('') };
}

describe('a command line', () => {
  it('gives arguments, the last of an option that is given twice', async () => {
    expect(await outcome('--max-tokens', '3', '--max-tokens', '4')).toEqual({ exit: 0, out: '4', err: '' });
  });

  it.each(['--version', '-V'])('%s', async (flag) => {
    expect(await outcome(flag)).toEqual({ exit: 0, out: '1.2.3\n', err: '' });
  });

  it.each(['--help', '-h'])('%s ends with the exit codes and the example', async (flag) => {
    const { exit, out } = await outcome(flag);
    expect(exit).toBe(0);
    expect(out).toMatch(
      /--max-tokens[\s\S]*Exit codes:\n {4}0 {2}Done\n[\s\S]*\n {2}130 {2}[^\n]*\n\nExample:/,
    );
    expect(out.endsWith('\n\nExample:\n  cflow-test a.txt --max-tokens 3\n')).toBe(true);
  });

  it.each([
    [['--max-token', '3'], 'Unknown arguments: max-token, maxToken (did you mean --max-tokens? see'],
    [['fail', '--dep'], 'Unknown argument: dep (did you mean --deep? see'],
    [['--max-tokens'], 'Not enough arguments following: max-tokens (see'],
    [['--dtype', 'q5'], 'Invalid values: Argument: dtype, Given: "q5", Choices: "q4_0", "f32" (see'],
  ])('%j is refused in one line', async (argv, text) => {
    const line = `cflow-test: error: ${text} cflow-test --help)\n`;
    expect(await outcome(...argv)).toEqual({ exit: 2, out: '', err: line });
  });

  it('does not blame the command line for a defect of a handler', async () => {
    expect(await outcome('fail')).toMatchObject({ exit: 70, err: expect.stringContaining('a defect') });
  });
});

describe('what was meant', () => {
  it('a repository where a file is expected', () => {
    expect(() => refuseHubName('hf:acme/tiny@main')).toThrow('cflow-convert hf:acme/tiny@main tiny.cflow');
    expect(() => refuseHubName('model.cflow')).not.toThrow();
  });

  it.each([
    ['Unknown argument: promt', 'did you mean --prompt?'],
    ['Unknown arguments: max-token, maxToken', 'did you mean --max-tokens?'],
    ['Unknown argument: xyzzy', 'see cflow-run --help'],
  ])('%s: %s', (problem, remedy) => {
    const error = usageError('cflow-run', problem, ['prompt', 'max-tokens', 'top-k']);
    expect(error).toBeInstanceOf(CflowError);
    expect(error.message).toContain(remedy);
  });
});
