/** Tables of the JSON documents: keys, types, presence and meaning, from the zod schemas and the comments in front of their keys. */
import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { z } from 'zod';

const SOURCES = ['model/config.ts', 'file/metadata.ts'];
/** Objects that have a const of their own, by the key under which they stand. */
const OWNERS = { attention: 'attention', ffn: 'ffn', experts: 'experts', rope: 'rope', layers: 'layer' };

/** Comments by `const.key`; variants of a union by `const.variant.key`. */
function comments() {
  const found = new Map();
  for (const path of SOURCES) {
    let [owner, variant, comment] = ['', '', ''];
    const source = readFileSync(
      fileURLToPath(new URL(`../packages/format/src/${path}`, import.meta.url)),
      'utf8',
    );
    for (const line of source.split('\n')) {
      const declared = /^(?:export )?const (\w+) = /.exec(line)?.[1];
      if (declared) [owner, variant] = [declared, ''];
      variant = /type: z\.literal\('(\w+)'\)/.exec(line)?.[1] ?? variant;
      const text = /^\s*\/\*\* (.*) \*\/$/.exec(line)?.[1];
      const key = /^\s+(\w+)[:,]/.exec(line)?.[1];
      if (key && comment) found.set([owner, variant, key].filter(Boolean).join('.'), comment);
      comment = text ?? '';
    }
  }
  return found;
}

const grouped = (n) => n.toLocaleString('en-US');

function typeOf(schema) {
  if (schema.const !== undefined) return `\`${schema.const}\``;
  if (schema.enum) return schema.enum.map((name) => `\`${name}\``).join(', ');
  if (schema.type === 'integer') return `integer, ${rangeOf(schema)}`;
  if (schema.type === 'number') return `number, ${rangeOf(schema)}`;
  if (schema.type === 'array')
    return `array of ${rangeOf({ minimum: schema.minItems ?? 0, maximum: schema.maxItems })}`;
  if (schema.type === 'string')
    return schema.maxLength ? `text, at most ${schema.maxLength} characters` : 'text';
  return schema.type ?? (schema.oneOf ? 'object' : 'any JSON');
}

function rangeOf({ minimum, maximum, exclusiveMinimum }) {
  const least = exclusiveMinimum === undefined ? `${grouped(minimum ?? 0)}` : `above ${exclusiveMinimum}`;
  const most = maximum === undefined || maximum >= Number.MAX_SAFE_INTEGER ? '' : grouped(maximum);
  if (exclusiveMinimum !== undefined) return most ? `${least}, at most ${most}` : least;
  return most ? `${least} … ${most}` : `from ${least} on`;
}

function presenceOf(schema, required) {
  if (schema.default !== undefined) return `default \`${JSON.stringify(schema.default)}\``;
  return required ? 'required' : 'optional';
}

function* rowsOf(schema, path, owner, texts) {
  for (const [key, value] of Object.entries(schema.properties ?? {})) {
    const meaning = texts.get(`${owner}.${key}`) ?? '';
    const name = path ? `${path}.${key}` : key;
    yield [`\`${name}\``, typeOf(value), presenceOf(value, schema.required?.includes(key)), meaning];
    const inner = value.type === 'array' ? value.items : value;
    const place = value.type === 'array' ? `${name}[]` : name;
    if (inner.properties) yield* rowsOf(inner, place, OWNERS[key] ?? owner, texts);
    for (const one of value.oneOf ?? value.anyOf ?? []) {
      const type = one.properties?.type?.const;
      if (!type) continue;
      yield [`\`${name}\`, type \`${type}\``, 'object', '', texts.get(`ropeScaling.${type}.type`)];
      yield* rowsOf({ ...one, properties: omit(one.properties, 'type') }, name, `ropeScaling.${type}`, texts);
    }
  }
}

function omit({ ...object }, key) {
  delete object[key];
  return object;
}

function tableOf(schema, owner) {
  const json = z.toJSONSchema(schema, { io: 'input', unrepresentable: 'any' });
  const rows = [...rowsOf(json, '', owner, comments())];
  const head = ['key', 'type', 'presence', 'meaning'];
  const undocumented = rows
    .filter(([, type, , meaning]) => !meaning && type !== 'object')
    .map(([key]) => key);
  if (undocumented.length) throw new Error(`no doc comment: ${undocumented.join(', ')}`);
  return [head, head.map(() => '---'), ...rows].map((cells) => `| ${cells.join(' | ')} |`).join('\n');
}

/** The generated parts of section 7. */
export function documentSections({ modelConfigSchema, metadataSchema }) {
  return {
    config: tableOf(modelConfigSchema, 'modelConfigSchema'),
    metadata: tableOf(metadataSchema.omit({ config: true }), 'metadataSchema'),
  };
}
