/** A report as text of at most 100 columns. */

import { printable } from '@cflow/format';
import { fileText, inUnit, memoryText } from '#cli-kit/bytes.js';
import { count, plural, table as tableLines } from '#cli-kit/text.js';
import { bar, layoutLines } from './layout-map.js';
import type { InspectReport, LayerRow, SizeKind, TileRow } from './schema.js';
import { clip, field, percent, ranges, short } from './text.js';

const SIZE_NAMES: Record<SizeKind, string> = {
  attention: 'attention',
  dense: 'dense',
  router: 'router',
  experts: 'experts',
  finalNorm: 'final norm',
  embedding: 'embedding',
  lmHead: 'LM head',
  tables: 'header, tables',
  metadata: 'metadata',
  padding: 'padding',
};
const MAX_FILES = 4;
const MAX_GEOMETRIES = 6;

/** Parts of a report that can be shown. */
export type Section =
  | 'summary'
  | 'layers'
  | 'experts'
  | 'tiles'
  | 'plan'
  | 'criticalPath'
  | 'verify'
  | 'stats';

const SECTIONS: Record<Section, (report: InspectReport) => string> = {
  summary: renderSummary,
  layers: renderLayers,
  experts: renderExperts,
  tiles: renderTiles,
  plan: ({ plan = '' }) => plan.trimEnd(),
  criticalPath: renderCriticalPath,
  verify: renderVerify,
  stats: renderStats,
};

/** The asked sections, in the order given, an empty line between them. */
export function render(report: InspectReport, sections: readonly Section[]): string {
  return `${sections.map((section) => SECTIONS[section](report)).join('\n\n')}\n`;
}

function renderSummary(report: InspectReport): string {
  return [model(report), origin(report), sizes(report), layout(report), path(report)].join('\n\n');
}

function model({ file, model: m }: InspectReport): string {
  const { config } = m;
  const shown = m.geometries.slice(0, MAX_GEOMETRIES);
  const rest = m.geometries.length - shown.length;
  return [
    field('file', file.name),
    field(
      '',
      `.${file.container}${file.version === 5 ? '' : ` of version ${file.version}`}, ${file.dtype} tiles, ${count(file.bytes)} bytes (${fileText(file.bytes)})`,
    ),
    field('model', `${config.name} (${config.family}), ${count(m.parameters)} parameters`),
    field(
      '',
      `${plural(config.layers.length, 'layer')}, width ${count(config.hiddenDim)}, vocabulary ${count(config.vocabSize)}` +
        `${config.tiedEmbeddings ? ' (tied)' : ''}, context ${count(config.contextLength)}`,
    ),
    ...shown.map(({ layers, text }) => field('', `layers ${clip(ranges(layers), 40)}: ${text}`)),
    ...(rest ? [field('', `… ${plural(rest, 'more geometry', 'more geometries')}; see --json`)] : []),
    field('combine', `${config.combineStyle}: ${m.combine}`),
    field('dense delay', m.denseDelay),
    field('expert delay', m.expertDelay),
  ].join('\n');
}

function tokenizerText(tokenizer: InspectReport['origin']['tokenizer']): string {
  if (!tokenizer) return 'none';
  if (tokenizer.vocabSize === undefined) return 'not read';
  return `${plural(tokenizer.vocabSize, 'token')}${tokenizer.chatTemplate ? ', with chat template' : ''}`;
}

function origin({ origin: { source, converter, tokenizer } }: InspectReport): string {
  const files = source.files.slice(0, MAX_FILES);
  const rest = source.files.length - files.length;
  const options = Object.entries(converter.options).map(([name, value]) => `${name}=${value}`);
  return [
    field('source', `${source.name}${source.revision ? ` at ${source.revision}` : ''}`),
    ...files.map(({ name, bytes, sha256 }) =>
      field('', `${clip(name, 50)}, ${count(bytes)} bytes, sha256 ${sha256.slice(0, 12)}`),
    ),
    ...(rest ? [field('', `… ${plural(rest, 'more file')}; see --json`)] : []),
    field('converter', `${converter.version}${options.length ? `, ${options.join(', ')}` : ''}`),
    field('tokenizer', tokenizerText(tokenizer)),
  ].join('\n');
}

const table = (...args: Parameters<typeof tableLines>) => tableLines(...args).join('\n');

/** MiB, the unit of the critical path. */
const mib = (bytes: number) => inUnit(bytes, 'MiB');

function sizes({ sizes: rows, file }: InspectReport): string {
  return table(
    ['stream', '>regions', '>bytes', '>size', '>share'],
    [
      ...rows.map(({ kind, regions, bytes, share }) => [
        SIZE_NAMES[kind],
        count(regions),
        count(bytes),
        fileText(bytes),
        percent(share),
      ]),
      ['total', count(file.regions), count(file.bytes), fileText(file.bytes), percent(1)],
    ],
  );
}

function layout(report: InspectReport): string {
  return `${bar(report)}\n${layoutLines(report)}`;
}

function path({ criticalPath: { nominal, disk, bytesPerToken }, memory, model: m }: InspectReport): string {
  const line = ({ naive, critical }: { naive: number; critical: number }) =>
    `${mib(naive)} -> ${mib(critical)} MiB`;
  const { config } = m;
  return [
    field(
      'critical',
      `${line(nominal)} of weights a token, reduced ${nominal.reduction.toFixed(2)} x by the delays`,
    ),
    field('', `${line(disk)} as stored, with norms, scales and tile headers`),
    ...(config.iterations ? [field('', `counting ${config.iterations} passes over the stored layers`)] : []),
    field('a token', `reads ${fileText(bytesPerToken)}`),
    field(
      'memory',
      `weights ${memoryText(memory.weights)}, KV cache ${memoryText(memory.kvCache.f16)} in f16 at ` +
        `${count(config.contextLength)} positions, buffers ${memoryText(memory.workingSet)}`,
    ),
  ].join('\n');
}

function renderLayers({ layers }: InspectReport): string {
  const cells = (place: { offset: number; bytes: number } | undefined) =>
    place ? [`${place.offset}`, inUnit(place.bytes, 'MB')] : ['-', '-'];
  return table(
    ['>layer', '>attention', '>MB', '>dense', '>MB', '>router', '>experts', '>from', '>MB'],
    layers.map(({ layer, attention, dense, router, experts }) => [
      `${layer}`,
      ...cells(attention),
      ...cells(dense),
      router ? `${router.offset}` : '-',
      experts ? `${experts.topK}/${experts.count}` : '-',
      ...cells(experts),
    ]),
  );
}

function renderExperts({ experts, layers }: InspectReport): string {
  if (!experts.length) return 'no experts';
  return table(
    ['>layer', '>expert', '>table entry', '>offset', '>bytes'],
    experts.map(({ layer, expert, offset, bytes }) => [
      `${layer}`,
      `${expert}`,
      entryOf(layers[layer]!, expert),
      `${offset}`,
      `${bytes}`,
    ]),
  );
}

/** Where the expert table has the expert; version 6 has it in its stream table. */
function entryOf({ expertTable }: LayerRow, expert: number): string {
  return expertTable ? `${expertTable.offset + 16 * expert}` : '-';
}

function renderTiles({ tiles = [] }: InspectReport): string {
  const cells = (tile: TileRow) => [
    clip(tile.stream, 24),
    `${tile.offset}`,
    tile.matrix,
    `${tile.layer}`,
    tile.expert === undefined ? '-' : `${tile.expert}`,
    `${tile.row}`,
    `${tile.col}`,
    `${tile.rows}x${tile.cols}`,
    `${tile.group}`,
    clip(tile.wrong.length ? `wrong ${tile.wrong.join(' ')}` : 'ok', 16),
  ];
  return table(
    ['stream', '>offset', 'matrix', '>layer', '>expert', '>row', '>col', '>tile', '>group', 'header'],
    tiles.map(cells),
  );
}

function renderCriticalPath({ criticalPath: { layers, nominal, disk } }: InspectReport): string {
  const rows = layers.map(({ layer, nominal: n, disk: d }) => [
    `${layer}`,
    ...[n, d].flatMap((p) => [p.attention, p.dense, p.expert, p.naive, p.critical].map(mib)),
  ]);
  const sum = [
    'sum',
    ...[nominal, disk].flatMap(({ naive, critical }) => ['', '', '', mib(naive), mib(critical)]),
  ];
  const heading = ['>attn', '>dense', '>experts', '>naive', '>critical'];
  return [
    'MiB a token: nominal (weights alone), then on disk (with norms, scales and tile headers)',
    table(['>layer', ...heading, ...heading], [...rows, sum]),
  ].join('\n');
}

function renderVerify({ verify, file }: InspectReport): string {
  if (!verify) return '';
  const { faults, checkedBytes } = verify;
  if (!faults.length) {
    return `${printable(file.name)}: ${plural(file.regions, 'region')}, ${count(checkedBytes)} bytes, no faults`;
  }
  return faults
    .map(({ region, offset, problem }) => `at byte ${offset}: ${printable(region)}: ${printable(problem)}`)
    .join('\n');
}

function renderStats({ stats = [] }: InspectReport): string {
  return table(
    ['tensor', '>min', '>max', '>mean', '>std', '>zeros', '>scale', '>largest'],
    stats.map((row) => [
      clip(row.tensor.replace(/\.weight$/, ''), 32),
      short(row.min),
      short(row.max),
      short(row.mean),
      short(row.std),
      percent(row.zeros),
      row.scales ? short(row.scales.mean) : '-',
      row.scales ? short(row.scales.max) : '-',
    ]),
  );
}
