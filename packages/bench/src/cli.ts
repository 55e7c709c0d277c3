import { packageVersion } from '@cflow/format/node';
import type { CommandModule } from 'yargs';
import { commandLine, parseArguments } from '#cli-kit/command.js';
import { runCommand } from '#cli-kit/output.js';
import { EXAMPLES, withExample } from './examples.js';
import { experiments } from './experiments/index.js';
import { compare, WORSE } from './report/compare.js';
import { report } from './report/report.js';
import { checkOutput } from './runner/files.js';
import { interruptible, interruption } from './runner/resources.js';
import { scorecard } from './scorecard/scorecard.js';
import { synth } from './synth/synth.js';

/** Runs the command; returns its exit code. */
export async function main(argv: string[]): Promise<number> {
  const exit = await runCommand('cflow-bench', () => interruptible(() => run(argv)));
  // Work that ignores the abort signal must not keep the process alive.
  if (interruption.aborted) process.exit(exit);
  return exit;
}

async function run(argv: readonly string[]): Promise<number> {
  let exit = 0;
  const onWorse = () => {
    exit = WORSE;
  };
  const measuring = (await experiments()).map(({ command }) => command);
  await parseArguments(
    parser([synth, ...measuring, scorecard, compare(onWorse), report] as CommandModule[]),
    argv,
  );
  return exit;
}

function parser(commands: readonly CommandModule[]) {
  return (
    commandLine('cflow-bench', packageVersion(import.meta.url), EXAMPLES.decode!)
      // Options of several values may be repeated: --only decode --only convert.
      .parserConfiguration({ 'duplicate-arguments-array': true })
      .command(commands.map(withExample))
      .option('json', { type: 'boolean', default: false, describe: 'print the result as one JSON document' })
      .middleware((args) => checkOutput(typeof args.save === 'string' ? args.save : undefined, args))
      .demandCommand(1, 'a command is needed')
  );
}
