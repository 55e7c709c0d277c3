/**
 * Our engine and llama.cpp on the same weights: the controlled comparison that the report misses (§7.4). A model is a
 * geometry, of which synthetic weights are made, or a file; llama.cpp reads our lossless export of it.
 */
import { access, mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { basename, join } from 'node:path';
import { convert } from '@cflow/convert';
import { openModel } from '@cflow/format';
import { openFileSource } from '@cflow/format/node';
import { benchDecode, type DecodeReport, ROOM } from '../decode/decode-bench.js';
import type { Lengths } from '../decode/decode-job.js';
import { FIGURES } from '../decode/decode-metrics.js';
import { loadPeer } from '../decode/run-llama.js';
import { GEOMETRIES } from '../synth/geometry.js';
import { synthesizeModel } from '../synth/synth-model.js';

export interface PeersOptions extends Lengths {
  /** Names of geometries, or files. */
  readonly models: readonly string[];
  readonly threads: number;
  readonly runs: number;
  /** Keeps the files that are made, and takes those that are there; absent: a folder that is removed again. */
  readonly directory?: string | undefined;
  /** Of a geometry; absent: its own. */
  readonly layers?: number | undefined;
  readonly onStep?: (text: string) => void;
}

export interface PeerComparison {
  readonly model: string;
  readonly report: DecodeReport;
  /** By figure, of each round: how many times better ours is, whichever direction is better. */
  readonly ratios: Readonly<Record<string, readonly number[]>>;
  /** Share of the checked positions at which both choose the same token; undefined if none was checked. */
  readonly agreement?: number | undefined;
}

/**
 * Model after model; within each, subjects in turns.
 * @throws CflowError UNSUPPORTED (no peer installed, no GGUF of the model), and whatever a run fails with
 */
export async function benchPeers(options: PeersOptions): Promise<PeerComparison[]> {
  // Before hours are spent.
  await loadPeer();
  const directory = options.directory ?? (await mkdtemp(join(tmpdir(), 'cflow-peers-')));
  try {
    const comparisons: PeerComparison[] = [];
    for (const model of options.models) comparisons.push(await compareOn(model, directory, options));
    return comparisons;
  } finally {
    if (options.directory === undefined) await rm(directory, { recursive: true });
  }
}

async function compareOn(model: string, directory: string, options: PeersOptions): Promise<PeerComparison> {
  const { onStep } = options;
  const name = basename(model).replace(/\.[cv]flow$/, '');
  onStep?.(`${name}: files`);
  const file = await modelFile(model, directory, options.layers);
  const gguf = join(directory, `${basename(file).replace(/\.[cv]flow$/, '')}.gguf`);
  if (!(await exists(gguf))) await convert({ source: file, output: gguf });
  const report = await benchDecode({
    ...(await fitting(file, options)),
    file,
    gguf,
    threads: options.threads,
    runs: options.runs,
    variants: [{ name: 'cflow', options: { weights: 'resident' } }],
    onRun: (subject, round) => onStep?.(`${name}: round ${round + 1} of ${options.runs}: ${subject}`),
  });
  // Files of gigabytes: no two models' at a time, where none is to be kept.
  if (options.directory === undefined) {
    await rm(gguf);
    if (file !== model) await rm(file);
  }
  return { model: name, report, ...against(report) };
}

async function modelFile(model: string, directory: string, layers: number | undefined): Promise<string> {
  if (!GEOMETRIES.includes(model)) return model;
  const target = join(directory, `${model}${layers ? `-${layers}l` : ''}.cflow`);
  if (await exists(target)) return target;
  await synthesizeModel({ target, format: 'cflow', geometry: model, dtype: 'q4_0', seed: 1, layers });
  return target;
}

const exists = (file: string) =>
  access(file).then(
    () => true,
    () => false,
  );

/** The lengths asked for, or what the context of the model has room for. */
async function fitting(file: string, lengths: Lengths): Promise<Lengths> {
  const source = await openFileSource(file);
  try {
    const { config } = await openModel(source);
    return fitLengths(lengths, config.contextLength);
  } finally {
    await source.close();
  }
}

/** @param context positions that the model has */
export function fitLengths({ tokens, prefill, warmup, context, checked }: Lengths, most: number): Lengths {
  const room = most - ROOM;
  const fit = (wanted: number) => Math.min(wanted, room);
  return {
    tokens: fit(tokens),
    prefill: fit(prefill),
    warmup: fit(warmup),
    context: Math.max(0, Math.min(context, room - tokens)),
    checked: fit(checked),
  };
}

/** @param report of two subjects: ours, then theirs */
export function against(report: DecodeReport): Pick<PeerComparison, 'ratios' | 'agreement'> {
  const [ours, theirs] = report.rows;
  const ratios = FIGURES.flatMap(({ name, better, of }) => {
    const rounds = ours!.runs.map((run, i) => {
      const [a, b] = [of(run, report), of(theirs!.runs[i]!, report)];
      return a && b ? (better === 'higher' ? a / b : b / a) : undefined;
    });
    const known = rounds.filter((ratio) => ratio !== undefined);
    return known.length ? [[name, known]] : [];
  });
  const [a, b] = [ours!.runs[0]!.chosen, theirs!.runs[0]!.chosen];
  const same = a.filter((token, i) => token === b[i]).length;
  return { ratios: Object.fromEntries(ratios), agreement: a.length ? same / a.length : undefined };
}
