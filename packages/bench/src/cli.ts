import { exitCodeHelp } from '@cflow/format';
import { packageVersion, runCommand, usageError, writeOutput } from '@cflow/format/node';
import yargs from 'yargs';
import { pathOptions, runCriticalPath, runStructure, structureOptions } from './analysis/cli-analysis.js';
import { command as cache } from './cache/command.js';
import { command as capped } from './capped/command.js';
import { convertOptions, runConvert } from './convert/cli-convert.js';
import { decodeOptions, runDecode } from './decode/cli-decode.js';
import { prefillOptions, runPrefill } from './decode/cli-prefill.js';
import { checkOutput } from './harness/files.js';
import { interruptible, interruption } from './harness/resources.js';
import { command as l1d } from './l1d/command.js';
import { command as overlap } from './overlap/command.js';
import { peersOptions, runPeers } from './peers/cli-peers.js';
import { qualityOptions, runQuality } from './quality/cli-quality.js';
import { compareOptions, runCompare } from './report/cli-compare.js';
import { reportOptions, runReport } from './report/cli-report.js';
import { command as residual } from './residual/command.js';
import { runScorecard, scorecardOptions } from './scorecard/cli-scorecard.js';
import { command as storage } from './storage/command.js';
import { runSynth, synthOptions } from './synth/cli-synth.js';

/** Runs the command; returns its exit code. */
export async function main(argv: string[]): Promise<number> {
  const exit = await runCommand('cflow-bench', () => interruptible(() => run(argv)));
  // What was not told of the interruption does not hold the process either.
  if (interruption.aborted) process.exit(exit);
  return exit;
}

async function run(argv: string[]): Promise<number> {
  let help = '';
  const outcome = { exit: 0 };
  await parser(argv, outcome).parseAsync(argv, {}, (_error, _argv, output) => {
    help = output;
  });
  if (help) await writeOutput(`${help}\n`);
  return outcome.exit;
}

/** @param outcome gets the exit code of a command that ended well and yet has something to say by it */
function parser(argv: string[], outcome: { exit: number }) {
  return yargs(argv)
    .scriptName('cflow-bench')
    .command('synth <target>', 'write a synthetic model of Gaussian weights', synthOptions, runSynth)
    .command(
      'convert <source>',
      'convert a checkpoint, in turns, and compare threads',
      convertOptions,
      runConvert,
    )
    .command('decode <model>', 'tokens a second of the engine, beside llama.cpp', decodeOptions, runDecode)
    .command('prefill <model>', 'tokens a second of prompts', prefillOptions, runPrefill)
    .command(
      'quality <source> <texts>',
      'perplexity on texts in f32, q8_0 and q4_0, with and without searched scales',
      qualityOptions,
      runQuality,
    )
    .command('peers [models..]', 'ours and llama.cpp on the same weights', peersOptions, runPeers)
    .command('critical-path', 'bytes on the critical path of every preset', pathOptions, runCriticalPath)
    .command('structure <model>', 'what the layout of a file promises', structureOptions, runStructure)
    .command('scorecard', 'every claim, with what this machine says to it', scorecardOptions, runScorecard)
    .command('compare <before> <after>', 'two results, metric by metric', compareOptions, async (args) => {
      outcome.exit = await runCompare(args);
    })
    .command('report <files..>', 'results as a page with charts', reportOptions, runReport)
    .command(l1d)
    .command(storage)
    .command(overlap)
    .command(cache)
    .command(residual)
    .command(capped)
    .option('json', { type: 'boolean', default: false, describe: 'the result as one JSON document' })
    .middleware((args) => checkOutput(typeof args.save === 'string' ? args.save : undefined, args))
    .demandCommand(1, 'a command is needed')
    .epilogue(exitCodeHelp())
    .strict()
    .version(packageVersion(import.meta.url))
    .wrap(100)
    .exitProcess(false)
    .fail((message, error) => {
      throw error ?? usageError('cflow-bench', message);
    });
}
