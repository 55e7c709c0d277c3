/** `cflow-bench synth`. */

import { CflowError, DTYPE_NAMES, type Dtype } from '@cflow/format';
import type { ArgumentsCamelCase, Argv, CommandModule } from 'yargs';
import { fileText, parseBytes, rateText } from '#cli-kit/bytes.js';
import { progress } from '#cli-kit/progress.js';
import { count, plural } from '#cli-kit/text.js';
import { type Builder, print, SHARED, seedOf, count as whole } from '../runner/options.js';
import { interruption } from '../runner/resources.js';
import { STORAGES, type StorageName, type SynthResult, synthesize } from './checkpoint.js';
import { GEOMETRIES } from './geometry.js';
import { MODEL_FORMATS, type ModelFormat, type SynthModelResult, synthesizeModel } from './model.js';

const FORMATS = ['checkpoint', ...MODEL_FORMATS] as const;
const STORAGE_NAMES = Object.keys(STORAGES) as StorageName[];
const DTYPES = [...new Set<StorageName | Dtype>([...STORAGE_NAMES, ...DTYPE_NAMES])];

function options(y: Builder) {
  return y
    .positional('target', { type: 'string', demandOption: true, describe: 'directory or file to write' })
    .option('format', {
      choices: FORMATS,
      default: 'checkpoint' as (typeof FORMATS)[number],
      describe: 'a checkpoint to convert, or a model file; gguf for llama.cpp',
    })
    .option('geometry', {
      type: 'string',
      default: 'llama-tiny',
      choices: GEOMETRIES,
      describe: 'shapes of the model',
    })
    .option('bytes', {
      type: 'string',
      describe: 'approximate size of the weights, e.g. 2GB, reached by the number of layers',
    })
    .option('layers', { ...SHARED.layers, describe: `${SHARED.layers.describe}; model files only` })
    .option('shards', { type: 'number', describe: 'shards of a checkpoint [default: 1]' })
    .option('dtype', {
      choices: DTYPES,
      describe: 'dtype of the weights [default: bf16 for a checkpoint, q4_0 for a model file]',
    })
    .option('seed', SHARED.seed)
    .option('overwrite', { type: 'boolean', default: false, describe: 'replace an existing file' })
    .conflicts('bytes', 'layers');
}

type SynthArgs = ReturnType<typeof options> extends Argv<infer Given> ? Given : never;

export const synth: CommandModule<object, SynthArgs> = {
  command: 'synth <target>',
  describe: 'write a synthetic model of Gaussian weights',
  builder: options,
  handler: run,
};

async function run(args: ArgumentsCamelCase<SynthArgs>): Promise<void> {
  if (args.format === 'checkpoint') await print(args, await checkpoint(args), describeCheckpoint);
  else await print(args, await model(args, args.format), describeModel);
}

function checkpoint(args: SynthArgs): Promise<SynthResult> {
  refuse('layers', args.layers !== undefined, 'use --bytes');
  refuse('overwrite', args.overwrite, 'choose another directory');
  return synthesize({
    directory: args.target,
    geometry: args.geometry,
    ...bytesOf(args),
    shards: whole('shards', args.shards ?? 1, 99_999),
    dtype: dtypeOf(args, STORAGE_NAMES, 'bf16'),
    seed: seedOf(args.seed),
  });
}

async function model(args: ArgumentsCamelCase<SynthArgs>, format: ModelFormat): Promise<SynthModelResult> {
  refuse('shards', args.shards !== undefined, 'a model is one file');
  const line = progress(args.json === true);
  try {
    return await synthesizeModel({
      target: args.target,
      format,
      geometry: args.geometry,
      ...bytesOf(args),
      ...(args.layers === undefined ? {} : { layers: whole('layers', args.layers, 65_535) }),
      dtype: dtypeOf(args, DTYPE_NAMES, 'q4_0'),
      seed: seedOf(args.seed),
      overwrite: args.overwrite,
      signal: interruption,
      onProgress: line.bytes('written'),
    });
  } finally {
    line.stop();
  }
}

function bytesOf({ bytes }: SynthArgs): { bytes?: number } {
  return bytes === undefined ? {} : { bytes: parseBytes(bytes, '--bytes') };
}

function dtypeOf<T extends string>({ dtype, format }: SynthArgs, names: readonly T[], usual: T): T {
  const found = dtype === undefined ? usual : names.find((name) => name === dtype);
  if (found) return found;
  throw new CflowError('USAGE', `--dtype ${dtype} does not apply to --format ${format}`, {
    field: 'dtype',
    value: dtype,
    remedy: `one of ${names.join(', ')}`,
  });
}

function refuse(field: string, given: boolean, remedy: string): void {
  if (given) throw new CflowError('USAGE', `--${field} does not apply to this --format`, { field, remedy });
}

function describeCheckpoint({ directory, parameters, layers, shards, bytes, seconds }: SynthResult): string {
  return `${directory}: ${count(parameters)} parameters in ${plural(layers, 'layer')}, ${fileText(bytes)} in ${plural(shards, 'file')}, ${rateText(bytes / seconds)}`;
}

function describeModel({ target, dtype, parameters, layers, bytes, seconds }: SynthModelResult): string {
  return `${target}: ${count(parameters)} parameters in ${plural(layers, 'layer')} as ${dtype}, ${fileText(bytes)}, ${rateText(bytes / seconds)}`;
}
