/** `--set KEY=VALUE`: changes what may be replaced in a file of version 6 without rewriting it. */
import { open } from 'node:fs/promises';
import { crc32 } from 'node:zlib';
import { CflowError, openModel, planSettings, type Settings, type Write } from '@cflow/format';
import { settingsDocumentSchema } from '@cflow/format/internal/file/documents6.js';
import { openFileSource, readTextFile } from '@cflow/format/node';
import { failed } from './targets/atomic-file.js';

/** Puts a value in its place; an empty one takes it away. */
type Setter = (settings: Settings, name: string, value: string) => Settings;

/** Characters of a typed value that messages show. */
const MOST_SHOWN = 200;
const UNKEPT = '__proto__';
const SAMPLING = settingsDocumentSchema.shape.generation.unwrap().shape;

const without = <T extends object>(object: T | undefined, name: string): T | undefined => {
  const rest = Object.fromEntries(Object.entries(object ?? {}).filter(([key]) => key !== name)) as T;
  return Object.keys(rest).length ? rest : undefined;
};

const refused = (text: string, why: string, remedy: string) =>
  new CflowError('USAGE', `cannot set ${JSON.stringify(text.slice(0, MOST_SHOWN))}: ${why}`, {
    field: 'set',
    value: text.slice(0, MOST_SHOWN),
    remedy,
  });

/** JSON, or else a text. Objects of JavaScript do not keep a key called __proto__. @throws CflowError USAGE */
function parsed(name: string, value: string): unknown {
  let lost = name === UNKEPT;
  const watch = (key: string, item: unknown) => {
    lost ||= key === UNKEPT;
    return item;
  };
  const json = jsonOr(value, watch);
  if (!lost) return json;
  throw refused(`extensions.${name}`, `a key called ${UNKEPT} is not stored`, 'choose another name');
}

function jsonOr(value: string, reviver: (key: string, item: unknown) => unknown): unknown {
  try {
    return JSON.parse(value, reviver);
  } catch {
    return value;
  }
}

/** @throws CflowError USAGE for a name that no default has, and a value that it may not have */
function samplingNumber(name: string, value: string): number {
  const text = `generation.${name}=${value}`;
  const names = Object.keys(SAMPLING);
  if (!Object.hasOwn(SAMPLING, name)) {
    const bare = (word: string) => word.replace(/[_-]/g, '').toLowerCase();
    const meant = names.find((each) => bare(each) === bare(name));
    const advice = meant ? `did you mean generation.${meant}? ` : '';
    throw refused(text, `generation has no ${name}`, `${advice}names are ${names.join(', ')}`);
  }
  const number = value.trim() === '' ? Number.NaN : Number(value);
  if (Number.isNaN(number)) {
    throw refused(
      text,
      `${JSON.stringify(value.slice(0, MOST_SHOWN))} is not a number`,
      `write generation.${name}=NUMBER`,
    );
  }
  const { error } = SAMPLING[name as keyof typeof SAMPLING].safeParse(number);
  if (error)
    throw refused(text, error.issues.map(({ message }) => message).join('; '), 'choose another number');
  return number;
}

const SETTERS: Readonly<Record<string, Setter>> = {
  chat_template: ({ chatTemplate: _, ...rest }, __, value) =>
    value ? { ...rest, chatTemplate: value } : rest,
  generation: ({ generation, ...rest }, name, value) => {
    const kept = value ? { ...generation, [name]: samplingNumber(name, value) } : without(generation, name);
    return kept ? { ...rest, generation: kept } : rest;
  },
  extensions: ({ extensions, ...rest }, name, value) => {
    const kept = value ? { ...extensions, [name]: parsed(name, value) } : without(extensions, name);
    return kept ? { ...rest, extensions: kept as Settings['extensions'] } : rest;
  },
};

/** `chat_template`, `generation.NAME` or `extensions.NAME`. @throws CflowError USAGE */
function parseAssignment(text: string) {
  const [, key = '', name = '', value] = /^(\w+)(?:\.([^=]+))?=([\s\S]*)$/.exec(text) ?? [];
  const set = Object.hasOwn(SETTERS, key) ? SETTERS[key] : undefined;
  if (set && value !== undefined && (key === 'chat_template') === (name === ''))
    return { key, set, name, value };
  throw refused(
    text,
    'no setting is written so',
    'write chat_template=TEXT, generation.NAME=NUMBER or extensions.NAME=JSON; @FILE takes the value from a file',
  );
}

/**
 * Changes settings in place: all assignments in their order, by one write. Whatever happens meanwhile, the file has its old
 * settings or the new ones.
 * @param options.dryRun check everything and write nothing
 * @throws CflowError USAGE, UNSUPPORTED (version 5), LIMIT_EXCEEDED (no room), WRITE_FAILED, CONFIG_INVALID
 */
export async function setInFile(
  path: string,
  assignments: readonly string[],
  options: { readonly dryRun?: boolean } = {},
): Promise<void> {
  const changes = await Promise.all(assignments.map(readAssignment));
  const source = await openFileSource(path);
  try {
    // The whole head is checked first: a damaged file is not changed.
    const { metadata } = await openModel(source, { crc32 });
    if (changes.some(({ key }) => key === 'chat_template') && !metadata.tokenizer) {
      throw new CflowError('USAGE', 'a chat template needs a tokenizer, and the file has none', {
        file: path,
      });
    }
    const change = (settings: Settings) =>
      changes.reduce((all, { set, name, value }) => set(all, name, value), settings);
    const writes = await planSettings(source, change, crc32);
    if (!options.dryRun) await writeInPlace(path, writes);
  } finally {
    await source.close();
  }
}

async function readAssignment(text: string) {
  const { value, ...assignment } = parseAssignment(text);
  return { ...assignment, value: value.startsWith('@') ? await readTextFile(value.slice(1)) : value };
}

async function writeInPlace(path: string, writes: readonly Write[]): Promise<void> {
  const handle = await open(path, 'r+').catch((cause) => failed(path, 'cannot open for writing', cause));
  try {
    for (const { offset, bytes } of writes) {
      const { bytesWritten } = await handle.write(bytes, 0, bytes.length, offset);
      if (bytesWritten !== bytes.length)
        throw new CflowError('WRITE_FAILED', 'the disk took part of it', { file: path });
      await handle.datasync();
    }
  } catch (cause) {
    failed(path, 'cannot write', cause);
  } finally {
    await handle.close();
  }
}
