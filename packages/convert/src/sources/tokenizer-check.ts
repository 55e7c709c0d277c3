/** What our libraries cannot run is said before weights are converted; the file is written all the same, and takes ids. */
import { CflowError } from '@cflow/format';
import { ChatTemplate, TextTokenizer } from '@cflow/runtime-native';
import type { Tokenizer } from './tokenizer.js';

/** Notes on a tokenizer and its chat template. */
export async function tokenizerNotes(tokenizer: Tokenizer | undefined): Promise<string[]> {
  if (!tokenizer) return [];
  const problems = [
    await problemOf(async () => void new TextTokenizer(tokenizer)),
    tokenizer.chatTemplate === undefined
      ? undefined
      : await problemOf(() => new ChatTemplate(tokenizer).check()),
  ];
  return problems.filter((problem) => problem !== undefined);
}

async function problemOf(work: () => Promise<void>): Promise<string | undefined> {
  try {
    await work();
    return undefined;
  } catch (error) {
    if (error instanceof CflowError) return error.message;
    throw error;
  }
}
