/**
 * The journal beside an unfinished output: what it is to become, who writes it, and checksums of what is safely on the
 * disk. Lines of JSON, only ever appended; a line that a crash cut off counts for nothing.
 */
import { type FileHandle, open, readFile } from 'node:fs/promises';
import { CflowError } from '@cflow/format';
import { errno } from '@cflow/format/node';
import { z } from 'zod';
import { failed } from '../targets/atomic-file.js';
import { type Owner, ownerSchema, thisProcess } from '../targets/owner.js';

const VERSION = 1;

/** Everything that decides the bytes of an output; two conversions with equal facts write the same file. */
export type Facts = Readonly<Record<string, string | number>>;

/** Position in the output, and CRC-32 of the bytes before it from the start of its region. */
export type Sum = readonly [at: number, crc: number];

const headSchema = z.strictObject({
  journal: z.literal(VERSION),
  facts: z.record(z.string(), z.union([z.string(), z.number()])),
});
/** null: whoever wrote it has ended. */
const ownerLine = z.strictObject({ owner: ownerSchema.nullable() });
const sumsLine = z.strictObject({ sums: z.array(z.tuple([z.int().min(0), z.int().min(0)])).min(1) });

export interface JournalContents {
  readonly facts: Facts;
  readonly owner: Owner | null;
  /** By position, which only grows. */
  readonly sums: ReadonlyMap<number, number>;
  /** Bytes of the output that are known to be on the disk. */
  readonly secured: number;
}

/** What a journal says; undefined if there is none, or none that can be understood. */
export async function readJournal(path: string): Promise<JournalContents | undefined> {
  const text = await readFile(path, 'utf8').catch(() => '');
  // The last piece is what follows the last line break: nothing, or a line that was cut off.
  const lines = text.split('\n').slice(0, -1).map(parsed);
  const head = headSchema.safeParse(lines[0]).data;
  if (!head) return undefined;
  let owner: Owner | null = null;
  let secured = 0;
  const sums = new Map<number, number>();
  for (const line of lines.slice(1)) {
    const next = sumsLine.safeParse(line).data?.sums;
    const owned = ownerLine.safeParse(line).data;
    if (owned) owner = owned.owner;
    for (const [at, crc] of next ?? []) {
      if (at <= secured) continue;
      sums.set(at, crc);
      secured = at;
    }
  }
  return { facts: head.facts, owner, sums, secured };
}

function parsed(line: string): unknown {
  try {
    return JSON.parse(line);
  } catch {
    return undefined;
  }
}

/** Writes a journal. Each call returns once its line is on the disk. */
export class Journal {
  readonly #handle: FileHandle;

  private constructor(handle: FileHandle) {
    this.#handle = handle;
  }

  /** @throws CflowError OUTPUT_EXISTS if another process was faster, WRITE_FAILED; errors name the `target` */
  static async create(path: string, facts: Facts, target: string): Promise<Journal> {
    const handle = await open(path, 'wx').catch((cause) => {
      if (errno(cause) !== 'EEXIST') return failed(target, 'cannot create its journal', cause);
      throw new CflowError('OUTPUT_EXISTS', 'another process began to write it', { file: target, cause });
    });
    const journal = new Journal(handle);
    await journal.#append({ journal: VERSION, facts }, { owner: thisProcess() });
    return journal;
  }

  /** Goes on with one that `readJournal` understood. */
  static async reopen(path: string, target: string): Promise<Journal> {
    const handle = await open(path, 'a').catch((cause) =>
      failed(target, 'cannot continue its journal', cause),
    );
    const journal = new Journal(handle);
    // Begins with a line break of its own: the last line may have been cut off.
    await journal.#append('', { owner: thisProcess() });
    return journal;
  }

  secure(sums: readonly Sum[]): Promise<void> {
    return this.#append({ sums });
  }

  /** Leaves the output to whoever wants to go on with it. */
  release(): Promise<void> {
    return this.#append({ owner: null });
  }

  close(): Promise<void> {
    return this.#handle.close();
  }

  async #append(...lines: (object | string)[]): Promise<void> {
    const text = lines.map((line) => (typeof line === 'string' ? line : JSON.stringify(line)));
    await this.#handle.appendFile(`${text.join('\n')}\n`);
    await this.#handle.datasync();
  }
}

/** @throws CflowError USAGE: each fact that is no longer the same, with both values */
export function requireSameFacts(then: Facts, now: Facts, file: string): void {
  const names = [...new Set([...Object.keys(then), ...Object.keys(now)])];
  const changed = names.filter((name) => then[name] !== now[name]);
  if (changed.length === 0) return;
  const list = changed
    .slice(0, 5)
    .map((name) => `${name} was ${then[name] ?? 'absent'}, is ${now[name] ?? 'absent'}`);
  const more = changed.length > 5 ? `; and ${changed.length - 5} more` : '';
  throw new CflowError('USAGE', `what was begun is another conversion: ${list.join('; ')}${more}`, {
    file,
    field: 'resume',
    value: changed,
    remedy: 'repeat it as it was begun, or convert anew without --resume',
  });
}
