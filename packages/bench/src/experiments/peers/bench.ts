/**
 * Our engine and llama.cpp on the same weights: the controlled comparison that the report misses (§7.4). A model is a
 * geometry, of which synthetic weights are made, or a file; llama.cpp reads our lossless export of it.
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

/** Tokens on which quality is judged, unless told. */
export const CHECKED = 256;

export interface PeersOptions extends Lengths {
  /** Names of geometries, or files. */
  readonly models: readonly string[];
  readonly threads: number;
  readonly runs: number;
  /** File of texts on which quality is judged, of models with a tokenizer; else on pseudo-random tokens. */
  readonly texts?: string | undefined;
  /** Tokens of them; 0: quality is not judged. */
  readonly checked: number;
  /** Keeps the files that are made, and takes those that are there; absent: a folder that is removed again. */
  readonly directory?: string | undefined;
  /** Of a geometry; absent: its own. */
  readonly layers?: number | undefined;
}

export interface PeerComparison {
  readonly model: string;
  readonly report: DecodeReport;
  /** By figure, of each round: how many times better ours is, whichever direction is better. */
  readonly ratios: Readonly<Record<string, readonly number[]>>;
  /** Undefined if nothing was checked. */
  readonly quality: PeerQuality | undefined;
}

/**
 * Model after model; within each, subjects in turns.
 * @throws CflowError UNSUPPORTED (no peer installed, no GGUF of the model), and whatever a run fails with
 */
export async function benchPeers(options: PeersOptions, run = new Run()): Promise<PeerComparison[]> {
  // A missing peer is reported before hours are spent.
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
  // Files of gigabytes: unless they are kept, those of one model at a time.
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

/** Of the texts, if the model has a tokenizer; else pseudo-random ids, the same for every model. */
export function checkedIds(file: string, texts: string | undefined, checked: number): Promise<number[][]> {
  return withModelFile(file, async ({ config: { contextLength, vocabSize }, metadata }) => {
    if (texts === undefined || !metadata.tokenizer)
      return [promptIds(Math.min(checked, contextLength), vocabSize)];
    const tokenizer = new TextTokenizer(metadata.tokenizer);
    return textIds(await readTextFile(texts), { tokenizer, contextLength }, checked);
  });
}

/** The lengths asked for, or what a context of `most` positions has room for. */
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

/** @param report of two subjects: ours, then theirs */
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
