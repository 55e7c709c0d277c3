import { exitCodeHelp } from '@cflow/format';
import { packageVersion, runCommand, usageError, writeOutput } from '@cflow/format/node';
import yargs, { type CommandModule } from 'yargs';
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

async function run(argv: string[]): Promise<number> {
  let help = '';
  let exit = 0;
  const onWorse = () => {
    exit = WORSE;
  };
  const measuring = (await experiments()).map(({ command }) => command);
  const commands = [synth, ...measuring, scorecard, compare(onWorse), report] as CommandModule[];
  await parser(argv, commands).parseAsync(argv, {}, (_error, _argv, output) => {
    help = output;
  });
  if (help) await writeOutput(`${help}\n`);
  return exit;
}

function parser(argv: string[], commands: readonly CommandModule[]) {
  return yargs(argv)
    .scriptName('cflow-bench')
    .command([...commands])
    .option('json', { type: 'boolean', default: false, describe: 'print the result as one JSON document' })
    .middleware((args) => checkOutput(typeof args.save === 'string' ? args.save : undefined, args))
    .demandCommand(1, 'a command is needed')
    .epilogue(exitCodeHelp())
    .strict()
    .version(packageVersion(import.meta.url))
    .alias({ h: 'help', V: 'version' })
    .wrap(100)
    .exitProcess(false)
    .fail((message, error) => {
      throw error ?? usageError('cflow-bench', message);
    });
}
