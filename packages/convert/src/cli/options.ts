/** The options of cflow-convert. */

import { FORMAT_VERSIONS } from '@cflow/format/internal/file/schema.js';
import { PRESET_NAMES } from '@cflow/format/internal/model/preset-names.js';
import { DTYPE_NAMES } from '@cflow/format/internal/tiles/dtype.js';
import yargs from 'yargs';
import { commandLine } from '#cli-kit/command.js';
import { CONVERT_DEFAULTS } from '../defaults.js';

/** The parsed command line. */
export type Arguments = Awaited<ReturnType<ReturnType<typeof parser>['parse']>> & {
  source?: string;
  output?: string;
};

/** What the command line says by itself, defaults left out. */
export interface GivenOptions {
  /** Every --set, in order. */
  readonly assignments: readonly string[];
  /** Names of options, as they are written. */
  readonly given: readonly string[];
}

/**
 * What was typed on a command line that the parser accepted. The parser keeps only the last of a repeated option, and
 * `--set` may be repeated.
 */
export function givenOptions(argv: readonly string[]): GivenOptions {
  const { set, _, $0, ...rest } = yargs()
    .parserConfiguration({ 'greedy-arrays': false, 'camel-case-expansion': false })
    .option('set', { type: 'string', array: true })
    .help(false)
    .version(false)
    .parseSync([...argv]);
  return { assignments: set ?? [], given: Object.keys(rest) };
}

const EXAMPLE = 'cflow-convert hf:Qwen/Qwen3-0.6B qwen3.cflow --dtype q4_0';

/** @param version of the package */
export function parser(version: string, defaultThreads: number) {
  return commandLine('cflow-convert', version, EXAMPLE)
    .usage(
      [
        '$0 <source> <output.cflow|.vflow>',
        '',
        'Converts a checkpoint directory, one of the Hugging Face Hub (hf:org/name) or a GGUF (.gguf); lays a .cflow or .vflow out anew, or writes it as GGUF, .safetensors or a checkpoint directory.',
        'Guides: docs/guides/hub.md and docs/guides/gguf.md.',
      ].join('\n'),
    )
    .command('$0 [source] [output]', false, (y) =>
      y
        .positional('source', {
          type: 'string',
          describe:
            'checkpoint directory, hf:org/name[@revision] (Hugging Face Hub), GGUF (.gguf), .cflow or .vflow; optional with --model and --dry-run',
        })
        .positional('output', {
          type: 'string',
          describe:
            '.cflow or .vflow; from a .cflow or .vflow also .safetensors, .gguf, or a checkpoint directory (a name without extension, or with a slash at its end)',
        }),
    )
    .option('model', {
      type: 'string',
      choices: ['auto', ...PRESET_NAMES],
      describe: `auto, or the preset that the checkpoint must match [default: ${CONVERT_DEFAULTS.model}]`,
    })
    .option('dtype', {
      choices: DTYPE_NAMES,
      describe: `dtype of the weights [default: ${CONVERT_DEFAULTS.dtype}; from GGUF: that of most weights]`,
    })
    .option('format-version', {
      type: 'number',
      choices: FORMAT_VERSIONS,
      describe:
        'version of the format [default: 5 where it can hold the model, else 6; of a .cflow or .vflow: its own]',
    })
    .option('set', {
      type: 'string',
      describe:
        'change a file of version 6 in place, again for each change: chat_template=TEXT, generation.NAME=NUMBER or extensions.NAME=JSON; @FILE takes the value from a file, nothing removes it',
    })
    .option('scale-search', {
      type: 'boolean',
      describe: 'q4_0: search the best scale of each group [default: true]; --no-scale-search uses max|w|/7',
    })
    .option('allow-nonfinite', {
      choices: ['zero'] as const,
      describe: 'store NaN and Inf weights as 0 instead of stopping',
    })
    .option('strict', {
      type: 'boolean',
      describe: 'treat notes (ignored, derived, dropped, changed) as errors [default: false]',
    })
    .option('max-header', {
      type: 'number',
      describe: 'limit of a safetensors header, MB [default: 100]',
    })
    .option('dry-run', {
      type: 'boolean',
      default: false,
      describe: 'print what would be written; write nothing',
    })
    .option('json', { type: 'boolean', default: false, describe: 'print the result as one JSON document' })
    .option('verify', {
      type: 'boolean',
      default: false,
      describe: 'read the new file back and check every byte before renaming it',
    })
    .option('threads', { type: 'number', default: defaultThreads, describe: 'quantizing threads' })
    .option('resume', {
      type: 'boolean',
      describe: 'continue an interrupted conversion to this output [default: false]',
    })
    .option('cache', {
      type: 'boolean',
      describe: 'hf: keep the checkpoint in the Hub cache [default: true]; --no-cache streams the weights',
    })
    .option('overwrite', { type: 'boolean', default: false, describe: 'replace an existing output' });
}
