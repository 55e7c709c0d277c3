/** What the layout of a file promises (report §5.3, §5.6, §5.7): read from the file, not timed. */
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
  describe: 'what the layout of a file promises: experts read, fused matrices, order',
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

/** Bytes of all experts over those of the experts that a token chooses; absent without experts. */
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

/** Matrices that one pass over an activation serves, their stripes interleaved: the most of any part of such streams. */
function fused({ streams }: ModelFile, kind: StreamKind): Metric[] {
  const parts = [...streams.values()]
    .filter(({ stream }) => stream.kind === kind)
    .flatMap(({ stream }) => stream.parts);
  const tiles = parts.filter((part) => part.kind === 'tiles');
  const most = Math.max(0, ...tiles.map((part) => partTensors(part).length));
  return most ? [metric(`matrices in one pass: ${kind}`, '', 'higher', [most])] : [];
}

/** Share of the steps from one stream that a token asks for to the next that go forward in the file. */
function inOrder({ config, streams }: ModelFile): number {
  const offsets = firstAsked(buildPlan(config, { transfers: 'none' })).map(
    (name) => streams.get(name)!.offset,
  );
  const forward = offsets.filter((offset, i) => i > 0 && offset > offsets[i - 1]!);
  return offsets.length > 1 ? forward.length / (offsets.length - 1) : 1;
}
