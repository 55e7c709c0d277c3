/** cflow-run: parses the arguments; what runs a model is loaded after that. */

import { packageVersion } from '@cflow/format/node';
import { parseArguments } from '#cli-kit/command.js';
import { runCommand } from '#cli-kit/output.js';
import { interruptible } from '#cli-kit/signals.js';
import { refuseHubName } from '#cli-kit/usage.js';
import { checkArguments } from './cli/arguments.js';
import { namingFlags } from './cli/flags.js';
import { refuseMisplaced, refuseUnconverted } from './cli/misplaced.js';
import { type Arguments, parser } from './cli/options.js';

/** Runs cflow-run; resolves to the exit code and never throws. */
export function main(argv: string[]): Promise<number> {
  return runCommand('cflow-run', () => namingFlags(() => interruptible((signal) => run(argv, signal))));
}

async function run(argv: readonly string[], signal: AbortSignal): Promise<number> {
  const parsed = await parseArguments(parser(packageVersion(import.meta.url)), argv);
  if (!parsed) return 0;
  const args = parsed as Arguments;
  refuseMisplaced(args);
  checkArguments(args);
  refuseHubName(args.file);
  await refuseUnconverted(args.file);
  const { runModel } = await import('./cli/run.js');
  return runModel(args, signal);
}
