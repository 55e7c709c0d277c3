/** Properties of the file layout (report §5.3, §5.6, §5.7), read from the file, not timed. */
import {
  buildPlan,
  criticalPath,
  firstAsked,
  type ModelFile,
  partTensors,
  type StreamKind,
  streamBytes,
} from '@cflow/format';
import { experiment } from '../runner/experiment.js';
import { withModelFile } from '../runner/files.js';
import { SHARED } from '../runner/options.js';
import { type Measured, type Metric, metric } from '../runner/result.js';

export const structure = experiment({
  name: 'structure',
  positional: '<model>',
  describe: 'properties of the file layout: experts read, fused matrices, order',
  options: (y) => y.positional('model', SHARED.model),
  timed: false,
  measure: ({ model }) => fileStructure(model),
  quick: ({ model }) => fileStructure(model),
  results: (measured) => measured,
});

/** @throws CflowError as opening does */
export async function fileStructure(file: string): Promise<Measured> {
  return withModelFile(file, (model) => ({ metrics: structureOf(model) }));
}

export function structureOf(file: ModelFile): Metric[] {
  return [
    ...expertShare(file),
    ...fused(file, 'attention'),
    ...fused(file, 'dense'),
    metric('streams asked for in file order', '%', 'higher', [100 * inOrder(file)]),
  ];
}

/** Bytes of all experts relative to those selected per token; empty without experts. */
function expertShare({ config, dtype, streams }: ModelFile): Metric[] {
  let stored = 0;
  let read = 0;
  for (const { stream } of streams.values()) {
    const experts = stream.layer === undefined ? undefined : config.layers[stream.layer]?.experts;
    if (stream.kind !== 'expert' || !experts) continue;
    const bytes = streamBytes(stream, dtype);
    stored += bytes;
    read += (bytes * experts.topK) / experts.count;
  }
  if (!read) return [];
  const token = criticalPath(config, dtype).bytesPerToken;
  return [
    metric('experts stored over experts read', '×', 'higher', [stored / read]),
    metric('weights a token', 'MB', 'lower', [token / 1e6]),
    metric('weights a token, were all experts read', 'MB', 'lower', [(token - read + stored) / 1e6]),
  ];
}

/** Maximum number of matrices with interleaved stripes, multiplied in one pass over an activation. */
function fused({ streams }: ModelFile, kind: StreamKind): Metric[] {
  const parts = [...streams.values()]
    .filter(({ stream }) => stream.kind === kind)
    .flatMap(({ stream }) => stream.parts);
  const tiles = parts.filter((part) => part.kind === 'tiles');
  const most = Math.max(0, ...tiles.map((part) => partTensors(part).length));
  return most ? [metric(`matrices in one pass: ${kind}`, '', 'higher', [most])] : [];
}

/** Share of transitions between the streams of a token, in plan order, that go forward in the file. */
function inOrder({ config, streams }: ModelFile): number {
  const offsets = firstAsked(buildPlan(config, { transfers: 'none' })).map(
    (name) => streams.get(name)!.offset,
  );
  const forward = offsets.filter((offset, i) => i > 0 && offset > offsets[i - 1]!);
  return offsets.length > 1 ? forward.length / (offsets.length - 1) : 1;
}
