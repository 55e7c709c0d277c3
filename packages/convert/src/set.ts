/** `--set KEY=VALUE`: changes what may be replaced in a file of version 6 without rewriting it. */
import { open } from 'node:fs/promises';
import { crc32 } from 'node:zlib';
import { CflowError, openModel, planSettings, type Settings } from '@cflow/format';
import { openFileSource, readTextFile } from '@cflow/format/node';
import { failed } from './targets/atomic-file.js';

/** Puts a value in its place; an empty one takes it away. */
type Setter = (settings: Settings, name: string, value: string) => Settings;

const without = <T extends object>(object: T | undefined, name: string): T | undefined => {
  const rest = Object.fromEntries(Object.entries(object ?? {}).filter(([key]) => key !== name)) as T;
  return Object.keys(rest).length ? rest : undefined;
};

function parsed(value: string): unknown {
  try {
    return JSON.parse(value);
  } catch {
    return value;
  }
}

const SETTERS: Readonly<Record<string, Setter>> = {
  chat_template: ({ chatTemplate: _, ...rest }, __, value) =>
    value ? { ...rest, chatTemplate: value } : rest,
  generation: ({ generation, ...rest }, name, value) => {
    const kept = value ? { ...generation, [name]: Number(value) } : without(generation, name);
    return kept ? { ...rest, generation: kept } : rest;
  },
  extensions: ({ extensions, ...rest }, name, value) => {
    const kept = value ? { ...extensions, [name]: parsed(value) } : without(extensions, name);
    return kept ? { ...rest, extensions: kept as Settings['extensions'] } : rest;
  },
};

/** `chat_template`, `generation.NAME` or `extensions.NAME`. @throws CflowError USAGE */
function parseAssignment(text: string) {
  const [, key = '', name = '', value] = /^(\w+)(?:\.([^=]+))?=([\s\S]*)$/.exec(text) ?? [];
  const set = Object.hasOwn(SETTERS, key) ? SETTERS[key] : undefined;
  if (set && value !== undefined && (key === 'chat_template') === (name === ''))
    return { key, set, name, value };
  throw new CflowError('USAGE', `cannot set ${JSON.stringify(text)}`, {
    field: 'set',
    value: text,
    remedy:
      'write chat_template=TEXT, generation.NAME=NUMBER or extensions.NAME=JSON; @FILE takes the value from a file',
  });
}

/**
 * Changes one setting in place. Whatever happens meanwhile, the file has its old settings or the new ones.
 * @throws CflowError USAGE, UNSUPPORTED (version 5), LIMIT_EXCEEDED (no room), WRITE_FAILED, CONFIG_INVALID
 */
export async function setInFile(path: string, assignment: string): Promise<void> {
  const { key, set, name, value: given } = parseAssignment(assignment);
  const value = given.startsWith('@') ? await readTextFile(given.slice(1)) : given;
  const source = await openFileSource(path);
  try {
    // The whole head is checked first: a damaged file is not changed.
    const { metadata } = await openModel(source, { crc32 });
    if (key === 'chat_template' && !metadata.tokenizer) {
      throw new CflowError('USAGE', 'a chat template needs a tokenizer, and the file has none', {
        file: path,
      });
    }
    const writes = await planSettings(source, (settings) => set(settings, name, value), crc32);
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
  } finally {
    await source.close();
  }
}
