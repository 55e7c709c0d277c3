/**
 * Keeps docs/format.md in step with the code: everything between `<!-- generated:NAME -->` and `<!-- /generated -->`
 * is made from the tables in packages/format/src.
 *
 *     node scripts/format-doc.mjs           compares; exit 1 if the document is out of date
 *     node scripts/format-doc.mjs --write   rewrites
 */
import { readFileSync, writeFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { documentSections } from './config-doc.mjs';

const at = (path) => fileURLToPath(new URL(`../${path}`, import.meta.url));
export const DOCUMENT = at('docs/format.md');

const BYTES = { magic: 8, u8: 1, u16: 2, u32: 4, u64: 8, f32: 4 };
const table = (head, rows) =>
  [head, head.map(() => '---'), ...rows].map((cells) => `| ${cells.join(' | ')} |`).join('\n');
const code = (text) => `\`${text}\``;
const grouped = (number) => number.toLocaleString('en-US');

function structTable({ name, bytes, fields }) {
  const rows = fields.map((field) => [
    field.offset,
    field.type === 'magic' ? 'u8[8]' : field.type,
    code(field.name),
    field.meaning || 'its bytes',
  ]);
  const end = fields.reduce((sum, { type }) => sum + BYTES[type], 0);
  if (end !== bytes) throw new Error(`${name}: fields cover ${end} of ${bytes} bytes`);
  return `${name}, ${bytes} bytes:\n\n${table(['offset', 'type', 'field', 'meaning'], rows)}`;
}

/** The doc comment in front of each name that `pattern` (with the name as its group) finds in a source. */
function comments(path, pattern) {
  const source = readFileSync(at(path), 'utf8');
  const found = source.matchAll(new RegExp(`/\\*\\* ((?:[^*]|\\*(?!/))*?) \\*/\\s*${pattern}`, 'g'));
  return Object.fromEntries([...found].map(([, comment, name]) => [name, comment.replace(/\s+/g, ' ')]));
}

function required(texts, name) {
  if (!texts[name]) throw new Error(`${name} has no doc comment`);
  return texts[name];
}

function exitCodeTable({ ERRORS }) {
  const rows = Object.entries(ERRORS).map(([name, { exit, meaning }]) => [exit, code(name), `${meaning}.`]);
  return table(['exit code', 'code', 'meaning'], rows);
}

function limitTable(format) {
  const texts = comments('packages/format/src/limits.ts', 'export const (MAX_[A-Z_]+)');
  const names = Object.keys(format)
    .filter((name) => /^MAX_/.test(name))
    .sort();
  return table(
    ['limit', 'value', 'why'],
    names.map((name) => [code(name), grouped(format[name]), required(texts, name)]),
  );
}

function dtypeTable({ DTYPES, tileBytes, TILE_ROWS, TILE_COLS }) {
  const rows = Object.entries(DTYPES).map(([name, { id, group, scaleBytes, groupBytes }]) => [
    id,
    code(name),
    group,
    scaleBytes,
    groupBytes,
    grouped(tileBytes(name, TILE_ROWS, TILE_COLS)),
  ]);
  return table(['id', 'dtype', 'group', 'bytes of scale', 'bytes of data a group', 'full tile'], rows);
}

const idList = (ids) =>
  Object.entries(ids)
    .map(([name, id]) => `${id} ${code(name)}`)
    .join(', ');

function matrixList({ MATRIX_IDS }) {
  return `\`matrix_id\`: ${idList(MATRIX_IDS)}.`;
}

function styleList({ COMBINE_STYLES }) {
  return `\`combine_style\`, by the name that the metadata use: ${idList(COMBINE_STYLES)}.`;
}

/** What belongs between the markers, by name. `format` is the module @cflow/format. */
export function sections(format) {
  return {
    ...Object.fromEntries(
      [...format.STRUCTS, ...format.STRUCTS_6].map((struct) => [struct.name, structTable(struct)]),
    ),
    dtypes: dtypeTable(format),
    matrices: matrixList(format),
    combineStyles: styleList(format),
    sectionKinds: `\`kind\` of a section: ${idList(format.SECTION_KINDS)}.`,
    streamKinds: `\`kind\` of a stream: ${idList(Object.fromEntries(format.STREAM_KINDS.map((name, id) => [name, id])))}.`,
    limits: limitTable(format),
    ...documentSections(format),
    exitCodes: exitCodeTable(format),
  };
}

/** The document with every generated part renewed. Throws if a part is missing, or there is one too many. */
export function renew(document, parts) {
  const used = new Set();
  const renewed = document.replace(/<!-- generated:(\w+) -->[\s\S]*?<!-- \/generated -->/g, (_, name) => {
    if (!Object.hasOwn(parts, name)) throw new Error(`the document has an unknown part ${name}`);
    used.add(name);
    return `<!-- generated:${name} -->\n${parts[name]}\n<!-- /generated -->`;
  });
  const missing = Object.keys(parts).filter((name) => !used.has(name));
  if (missing.length) throw new Error(`the document lacks ${missing.join(', ')}`);
  return renewed;
}

async function main() {
  const document = readFileSync(DOCUMENT, 'utf8');
  const renewed = renew(document, sections(await import('../packages/format/dist/index.js')));
  if (process.argv.includes('--write')) writeFileSync(DOCUMENT, renewed);
  else if (renewed !== document) {
    console.error('docs/format.md is out of date; run npm run docs:format');
    process.exitCode = 1;
  }
}

if (process.argv[1] === fileURLToPath(import.meta.url)) await main();
