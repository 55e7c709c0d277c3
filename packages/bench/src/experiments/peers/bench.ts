/**
 * Our engine and llama.cpp on the same weights: the controlled comparison that the report lacks (§7.4). A model is a
 * geometry with synthetic weights, or a file; llama.cpp reads our lossless export.
 */
import { access, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { basename, join } from 'node:path';
import { convert } from '@cflow/convert';
import { readTextFile } from '@cflow/format/node';
import { TextTokenizer } from '@cflow/runtime-native';
import { loadPeer } from '../../engines/llama.js';
import { Run } from '../../runner/experiment.js';
import { makeFolder, withModelFile } from '../../runner/files.js';
import { interruption, temporaryFolder } from '../../runner/resources.js';
import { textIds } from '../../runner/tokens.js';
import { GEOMETRIES } from '../../synth/geometry.js';
import { synthesizeModel } from '../../synth/model.js';
import { benchDecode, type DecodeReport, FIGURES, ROOM, type Variant } from '../decode/bench.js';
import { type Lengths, promptIds } from '../decode/run.js';
import { measurePeerQuality, type PeerQuality } from './quality.js';

/** Default number of tokens for quality. */
export const CHECKED = 256;

export interface PeersOptions extends Lengths {
  /** Geometries or model files. */
  readonly models: readonly string[];
  readonly threads: number;
  readonly runs: number;
  /** Text file for quality, for models with a tokenizer; otherwise pseudo-random tokens. */
  readonly texts?: string | undefined;
  /** Tokens for quality; 0: no quality. */
  readonly checked: number;
  /** Keeps and reuses files here; absent: a temporary directory. */
  readonly directory?: string | undefined;
  /** Number of layers of a geometry; absent: its own. */
  readonly layers?: number | undefined;
}

export interface PeerComparison {
  readonly model: string;
  readonly report: DecodeReport;
  /** By figure and round: ratio, above 1 if ours is better. */
  readonly ratios: Readonly<Record<string, readonly number[]>>;
  /** Undefined without quality. */
  readonly quality: PeerQuality | undefined;
}

/**
 * One model after another; within each, engines interleaved.
 * @throws CflowError UNSUPPORTED (no node-llama-cpp, no GGUF of the model), and errors of the runs
 */
export async function benchPeers(options: PeersOptions, run = new Run()): Promise<PeerComparison[]> {
  // Report missing node-llama-cpp before measuring for hours.
  await loadPeer();
  const compareAll = async (directory: string) => {
    const comparisons: PeerComparison[] = [];
    for (const model of options.models) {
      const name = basename(model).replace(/\.[cv]flow$/, '');
      comparisons.push(await compareOn(model, name, directory, options, run.within(name)));
    }
    return comparisons;
  };
  if (options.directory === undefined) return temporaryFolder(tmpdir(), 'peers', compareAll);
  await makeFolder(options.directory);
  return compareAll(options.directory);
}

async function compareOn(
  model: string,
  name: string,
  directory: string,
  options: PeersOptions,
  run: Run,
): Promise<PeerComparison> {
  run.step('files');
  const file = await modelFile(model, directory, options.layers);
  const gguf = join(directory, `${basename(file).replace(/\.[cv]flow$/, '')}.gguf`);
  if (!(await exists(gguf))) await convert({ source: file, output: gguf, signal: interruption });
  const { contextLength } = await withModelFile(file, ({ config }) => config);
  const { threads, runs } = options;
  const variants: Variant[] = [{ name: 'cflow', options: { weights: 'resident' } }];
  const lengths = fitLengths(options, contextLength);
  const report = await benchDecode({ ...lengths, file, gguf, threads, runs, variants }, run);
  run.step('quality');
  const quality = await qualityIn(directory, file, gguf, options);
  // Files have gigabytes: unless kept, those of one model at a time.
  if (options.directory === undefined) {
    await rm(gguf);
    if (file !== model) await rm(file);
  }
  return { model: name, report, ratios: against(report), quality };
}

async function modelFile(model: string, directory: string, layers: number | undefined): Promise<string> {
  if (!GEOMETRIES.includes(model)) return model;
  const target = join(directory, `${model}${layers ? `-${layers}l` : ''}.cflow`);
  if (await exists(target)) return target;
  const weights = { geometry: model, dtype: 'q4_0', seed: 1, layers } as const;
  await synthesizeModel({ target, format: 'cflow', ...weights, signal: interruption });
  return target;
}

const exists = (file: string) =>
  access(file).then(
    () => true,
    () => false,
  );

async function qualityIn(
  directory: string,
  file: string,
  gguf: string,
  { texts, checked, threads }: PeersOptions,
): Promise<PeerQuality | undefined> {
  if (checked === 0) return undefined;
  return temporaryFolder(directory, 'logits', async (folder) => {
    const sequences = await checkedIds(file, texts, checked);
    return measurePeerQuality({ file, gguf, threads, sequences, directory: folder });
  });
}

/** Tokens of the documents if the model has a tokenizer; otherwise pseudo-random ids, the same for every model. */
export function checkedIds(file: string, texts: string | undefined, checked: number): Promise<number[][]> {
  return withModelFile(file, async ({ config: { contextLength, vocabSize }, metadata }) => {
    if (texts === undefined || !metadata.tokenizer)
      return [promptIds(Math.min(checked, contextLength), vocabSize)];
    const tokenizer = new TextTokenizer(metadata.tokenizer);
    return textIds(await readTextFile(texts), { tokenizer, contextLength }, checked);
  });
}

/** The requested lengths, limited to a context of `most` positions. */
export function fitLengths({ tokens, prefill, warmup, context }: Lengths, most: number): Lengths {
  const room = most - ROOM;
  const fit = (wanted: number) => Math.min(wanted, room);
  return {
    tokens: fit(tokens),
    prefill: fit(prefill),
    warmup: fit(warmup),
    context: Math.max(0, Math.min(context, room - tokens)),
  };
}

/** @param report of two engines: cflow, then llama.cpp */
export function against(report: DecodeReport): PeerComparison['ratios'] {
  const [ours, theirs] = report.rows;
  const ratios = FIGURES.flatMap(({ name, better, of }) => {
    const rounds = ours!.runs.map((run, i) => {
      const [a, b] = [of(run, report), of(theirs!.runs[i]!, report)];
      return a && b ? (better === 'higher' ? a / b : b / a) : undefined;
    });
    const known = rounds.filter((ratio) => ratio !== undefined);
    return known.length ? [[name, known]] : [];
  });
  return Object.fromEntries(ratios);
}
