/** An opened file to a report: pure, from the head and tables alone. */
import {
  buildPlan,
  criticalPath,
  formatPlan,
  type ModelFile,
  memoryEstimate,
  parameterCount,
  type Region,
  type StreamKind,
} from '@cflow/format';
import {
  type ExpertRow,
  type InspectReport,
  type LayerRow,
  type Run,
  SIZE_KINDS,
  type SizeKind,
  type SizeRow,
} from './schema.js';
import { combineInWords, denseDelayInWords, expertDelayInWords, geometryInWords } from './words.js';

const STREAM_SIZE_KINDS: Record<StreamKind, SizeKind> = {
  attention: 'attention',
  dense: 'dense',
  router: 'router',
  expert: 'experts',
  finalNorm: 'finalNorm',
  embedding: 'embedding',
  lmHead: 'lmHead',
};
const REGION_SIZE_KINDS: Record<Exclude<Region['kind'], 'stream'>, SizeKind> = {
  header: 'tables',
  metadata: 'metadata',
  groupTable: 'tables',
  layerTable: 'tables',
  expertTable: 'tables',
  index: 'tables',
  document: 'metadata',
  slack: 'padding',
  other: 'metadata',
  padding: 'padding',
};

function sizeKind(region: Region): SizeKind {
  return region.kind === 'stream' ? STREAM_SIZE_KINDS[region.stream!.kind] : REGION_SIZE_KINDS[region.kind];
}

/** The last of these in front of the streams ends the head. */
const HEAD_KINDS: readonly Region['kind'][] = ['layerTable', 'index'];

/** Everything that the head says about a file. `name` is what to call it. */
export function describe(file: ModelFile, name: string): InspectReport {
  const { config, layout, metadata } = file;
  const { source, converter } = metadata;
  const firstStream = layout.regions.findIndex(({ kind }) => kind === 'stream');
  const head = layout.regions
    .slice(0, firstStream)
    .filter(({ kind }) => HEAD_KINDS.includes(kind))
    .at(-1)!;
  return {
    file: {
      name,
      bytes: layout.fileBytes,
      container: file.container,
      version: layout.version,
      dtype: file.dtype,
      regions: layout.regions.length,
      headBytes: head.offset + head.length,
    },
    model: {
      parameters: parameterCount(config),
      geometries: geometries(file),
      combine: combineInWords(config),
      denseDelay: denseDelayInWords(config),
      expertDelay: expertDelayInWords(config),
      config,
    },
    origin: {
      source,
      converter,
      ...tokenizerOf(file),
    },
    sizes: sizes(file),
    layout: layoutRuns(layout.regions),
    criticalPath: criticalPath(config, file.dtype),
    memory: memoryEstimate(config, file.dtype),
    layers: layerRows(file),
    experts: expertRows(file),
  };
}

function tokenizerOf({
  metadata: { tokenizer },
  layout,
}: ModelFile): Pick<InspectReport['origin'], 'tokenizer'> {
  if (tokenizer) {
    const { vocabSize, chatTemplate } = tokenizer;
    return { tokenizer: { vocabSize, chatTemplate: chatTemplate !== undefined } };
  }
  return layout.regions.some(({ kind, name }) => kind === 'document' && name === 'tokenizer')
    ? { tokenizer: {} }
    : {};
}

/** The execution plan with overlapped transfers, as text. */
export function planText({ config }: ModelFile): string {
  return formatPlan(buildPlan(config, { transfers: 'overlap' }));
}

function geometries({ config }: ModelFile): InspectReport['model']['geometries'] {
  const found = new Map<string, number[]>();
  for (const [index, layer] of config.layers.entries()) {
    const text = geometryInWords(layer);
    const layers = found.get(text);
    if (layers) layers.push(index);
    else found.set(text, [index]);
  }
  return [...found].map(([text, layers]) => ({ layers, text }));
}

/** Bytes by what they are for; only kinds that the file has. They add up to the file. */
function sizes({ layout }: ModelFile): SizeRow[] {
  const rows = new Map<SizeKind, SizeRow>();
  for (const region of layout.regions) {
    const kind = sizeKind(region);
    const row = rows.get(kind) ?? { kind, regions: 0, bytes: 0, share: 0 };
    const bytes = row.bytes + region.length;
    rows.set(kind, { kind, regions: row.regions + 1, bytes, share: bytes / layout.fileBytes });
  }
  return SIZE_KINDS.flatMap((kind) => rows.get(kind) ?? []);
}

const RUN_NAMES: Partial<Record<Region['kind'], string>> = {
  header: 'header',
  metadata: 'metadata',
  groupTable: 'group table',
  layerTable: 'layer table',
  expertTable: 'table',
  index: 'index',
  slack: 'slack',
};
const STREAM_RUN_NAMES: Record<StreamKind, string> = {
  attention: 'attention',
  dense: 'dense',
  router: 'router',
  expert: 'experts',
  finalNorm: 'final norm',
  embedding: 'embedding',
  lmHead: 'LM head',
};

function runName(region: Region): string {
  return region.stream ? STREAM_RUN_NAMES[region.stream.kind] : (RUN_NAMES[region.kind] ?? region.name);
}

function layerOf({ stream, layer }: Region): number | undefined {
  const vocab = stream && ['finalNorm', 'embedding', 'lmHead'].includes(stream.kind);
  return vocab ? undefined : (stream?.layer ?? layer);
}

/** Runs of neighbouring regions of one kind, padding passed over. */
function layoutRuns(regions: readonly Region[]): Run[] {
  const runs: Run[] = [];
  for (const region of regions) {
    if (region.kind === 'padding') continue;
    const { offset, length } = region;
    const name = runName(region);
    const layer = layerOf(region);
    const last = runs.at(-1);
    if (last?.name === name) {
      last.bytes = offset + length - last.offset;
      last.regions++;
      if (last.layers) last.layers = [last.layers[0], layer ?? last.layers[1]];
    } else {
      runs.push({
        kind: sizeKind(region),
        name,
        offset,
        bytes: length,
        regions: 1,
        ...(layer === undefined ? {} : { layers: [layer, layer] as [number, number] }),
      });
    }
  }
  return runs;
}

function place({ offset, length }: Region): { offset: number; bytes: number } {
  return { offset, bytes: length };
}

function layerRows({ config, layout }: ModelFile): LayerRow[] {
  const regions = new Map(layout.regions.map((region) => [region.name, region]));
  return config.layers.map(({ ffn, experts }, layer) => {
    const region = (name: string) => regions.get(`layers.${layer}.${name}`);
    const of = (name: string) => place(region(name)!);
    const first = experts && of('experts.0');
    return {
      layer,
      attention: of('attention'),
      ...(ffn ? { dense: of('dense') } : {}),
      ...(experts && first
        ? {
            router: of('router'),
            ...(region('expert_table') ? { expertTable: of('expert_table') } : {}),
            experts: {
              offset: first.offset,
              bytes: experts.count * first.bytes,
              count: experts.count,
              topK: experts.topK,
            },
          }
        : {}),
    };
  });
}

function expertRows({ layout }: ModelFile): ExpertRow[] {
  return layout.regions
    .filter(({ stream }) => stream?.kind === 'expert')
    .map((region) => ({ layer: region.stream!.layer, expert: region.stream!.expert, ...place(region) }))
    .sort((a, b) => a.layer - b.layer || a.expert - b.expert);
}
