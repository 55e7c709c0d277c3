/** cflow-convert: parses the arguments; what converts is loaded after that. */

import { CflowError } from '@cflow/format/internal/errors.js';
import { packageVersion } from '@cflow/format/node';
import { threadBudget } from '@cflow/runtime-native/internal/threads.js';
import { parseArguments } from '#cli-kit/command.js';
import { runCommand } from '#cli-kit/output.js';
import { type Arguments, givenOptions, parser } from './cli/options.js';
import { MOST_HEADER_BYTES, MOST_THREADS } from './defaults.js';

/** Runs the command; returns its exit code. */
export function main(argv: string[]): Promise<number> {
  return runCommand('cflow-convert', () => run(argv));
}

async function run(argv: readonly string[]): Promise<number> {
  const budget = await threadBudget();
  const parsed = await parseArguments(parser(packageVersion(import.meta.url), budget.threads), argv);
  if (!parsed) return 0;
  const args = parsed as Arguments;
  if (!Number.isInteger(args.threads) || args.threads < 1 || args.threads > MOST_THREADS) {
    throw new CflowError('USAGE', `--threads is ${args.threads}, expected 1 to ${MOST_THREADS}`);
  }
  const headerBytes = (args.maxHeader ?? 1) * 1e6;
  if (!(headerBytes >= 1 && headerBytes <= MOST_HEADER_BYTES)) {
    const most = MOST_HEADER_BYTES / 1e6;
    throw new CflowError(
      'USAGE',
      `--max-header is ${args.maxHeader}, expected more than 0 and up to ${most} (MB)`,
    );
  }
  const { runConversion, runDry, runSet } = await import('./cli/run.js');
  if (args.set !== undefined) return runSet(args, givenOptions(argv));
  return args.dryRun ? runDry(args) : runConversion(args, budget);
}
