import { exitCodeHelp } from '@cflow/format';
import { runCommand, usageError, writeOutput } from '@cflow/format/node';
import yargs from 'yargs';
import { convertOptions, runConvert } from './convert/cli-convert.js';
import { decodeOptions, runDecode } from './decode/cli-decode.js';
import { qualityOptions, runQuality } from './quality/cli-quality.js';
import { runSynth, synthOptions } from './synth/cli-synth.js';

/** Runs the command; returns its exit code. */
export function main(argv: string[]): Promise<number> {
  return runCommand('cflow-bench', async () => {
    let help = '';
    await parser(argv).parseAsync(argv, {}, (_error, _argv, output) => {
      help = output;
    });
    if (help) await writeOutput(`${help}\n`);
    return 0;
  });
}

function parser(argv: string[]) {
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
    .command(
      'quality <source> <texts>',
      'perplexity on texts in f32, q8_0 and q4_0, with and without searched scales',
      qualityOptions,
      runQuality,
    )
    .option('json', { type: 'boolean', default: false, describe: 'the result as one JSON document' })
    .demandCommand(1, 'a command is needed')
    .epilogue(exitCodeHelp())
    .strict()
    .version('0.1.0')
    .wrap(100)
    .exitProcess(false)
    .fail((message, error) => {
      throw error ?? usageError('cflow-bench', message);
    });
}
