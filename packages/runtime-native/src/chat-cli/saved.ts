/** Conversations in files. */
import { readFile, writeFile } from 'node:fs/promises';
import { CflowError } from '@cflow/format/internal/errors.js';
import type { ChatMessage } from '../chat/template.js';

const VERSION = 1;

interface Saved {
  readonly cflowChat: number;
  readonly messages: readonly ChatMessage[];
}

/** Writes a conversation. @throws CflowError OUTPUT_EXISTS for a file that is none, WRITE_FAILED */
export async function saveConversation(file: string, messages: readonly ChatMessage[]): Promise<void> {
  const before = await readFile(file, 'utf8').catch((error: NodeJS.ErrnoException) =>
    error.code === 'ENOENT' ? undefined : '',
  );
  if (before !== undefined && !savedIn(before))
    throw new CflowError('OUTPUT_EXISTS', 'exists and is no conversation', {
      file,
      remedy: 'choose another name',
    });
  const saved: Saved = { cflowChat: VERSION, messages };
  try {
    await writeFile(file, `${JSON.stringify(saved, null, 2)}\n`);
  } catch (cause) {
    throw new CflowError('WRITE_FAILED', `cannot be written: ${(cause as NodeJS.ErrnoException).code}`, {
      file,
      cause,
    });
  }
}

/** Messages of a conversation that was saved. @throws CflowError NOT_READABLE, CONFIG_INVALID */
export async function loadConversation(file: string): Promise<readonly ChatMessage[]> {
  const text = await readFile(file, 'utf8').catch((cause: NodeJS.ErrnoException) => {
    throw new CflowError('NOT_READABLE', `cannot be read: ${cause.code}`, { file, cause });
  });
  const saved = savedIn(text);
  if (saved) return saved.messages;
  throw new CflowError('CONFIG_INVALID', 'no conversation that /save wrote', { file });
}

function savedIn(text: string): Saved | undefined {
  try {
    const { cflowChat, messages } = JSON.parse(text) as Partial<Saved>;
    return cflowChat === VERSION && Array.isArray(messages) && messages.every(isMessage)
      ? { cflowChat, messages }
      : undefined;
  } catch {
    return undefined;
  }
}

function isMessage(value: unknown): boolean {
  const { role, content } = (value ?? {}) as { role?: unknown; content?: unknown };
  return (
    typeof role === 'string' && (typeof content === 'string' || content === null || Array.isArray(content))
  );
}
