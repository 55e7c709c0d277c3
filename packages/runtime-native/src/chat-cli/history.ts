/** What was typed in earlier conversations. */
import { appendFile, mkdir, readFile, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { baseDirectory } from './source.js';

/** Entries to keep. */
export const MAX_ENTRIES = 1000;

/** Where entries are kept: one JSON text a line, since an entry may have several lines. */
export function historyFile(environment: NodeJS.ProcessEnv = process.env): string {
  return join(baseDirectory(environment, 'XDG_STATE_HOME', '.local/state'), 'cflow', 'chat-history');
}

/** Entries, the oldest first; none where there is no file, and lines that are damaged are left out. */
export async function readHistory(file: string): Promise<string[]> {
  const lines = (await readFile(file, 'utf8').catch(() => '')).split('\n');
  return lines.flatMap(entryOf).slice(-MAX_ENTRIES);
}

function entryOf(line: string): string[] {
  try {
    const entry: unknown = JSON.parse(line);
    return typeof entry === 'string' ? [entry] : [];
  } catch {
    return [];
  }
}

/** Adds an entry; only its owner may read the file. @throws as appendFile */
export async function addHistory(file: string, entry: string): Promise<void> {
  await mkdir(dirname(file), { recursive: true, mode: 0o700 });
  await appendFile(file, `${JSON.stringify(entry)}\n`, { mode: 0o600 });
}

/** Drops what is beyond `MAX_ENTRIES`. */
export async function trimHistory(file: string): Promise<void> {
  const lines = (await readFile(file, 'utf8')).split('\n').filter(Boolean);
  if (lines.length > 2 * MAX_ENTRIES)
    await writeFile(file, `${lines.slice(-MAX_ENTRIES).join('\n')}\n`, { mode: 0o600 });
}
