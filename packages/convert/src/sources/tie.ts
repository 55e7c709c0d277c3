/** Whether the LM head is the embedding: what config.json says, against what is stored. As transformers 5 decides it. */
import type { ModelConfig } from '@cflow/format';
import { readExactly } from '@cflow/format';
import { checkpointName, type Family } from '../families/index.js';
import type { StoredTensor } from './shards.js';

/** Read at a time while two tensors are compared. */
const COMPARED_BYTES = 4 * 1024 * 1024;

export interface ResolvedTie {
  readonly config: ModelConfig;
  /** Stored tensors; a lone LM head is there under the embedding's name too. */
  readonly tensors: ReadonlyMap<string, StoredTensor>;
  readonly notes: readonly string[];
}

/**
 * Tied, and both are stored: one if they are equal, two if not. Tied, and only the head is stored: it is the embedding.
 * @throws CflowError NOT_READABLE
 */
export async function resolveTie(
  config: ModelConfig,
  family: Family,
  tensors: ReadonlyMap<string, StoredTensor>,
): Promise<ResolvedTie> {
  const [embeddingName, headName] = [
    stored(family, tensors, 'embed_tokens.weight'),
    stored(family, tensors, 'lm_head.weight'),
  ];
  const [embedding, head] = [tensors.get(embeddingName), tensors.get(headName)];
  if (!config.tiedEmbeddings || !head) return { config, tensors, notes: [] };
  const said = 'tie_word_embeddings is true';
  if (!embedding) {
    const notes = [`${said}, and only ${headName} is stored: it is read as the embedding`];
    const named = new Map([...tensors, [embeddingName, head] as const]);
    named.delete(headName);
    return { config, tensors: named, notes };
  }
  if (await equal(embedding, head)) return { config, tensors, notes: [] };
  const notes = [
    `${said}, but ${headName} differs from ${embeddingName}: both are kept, as transformers does`,
  ];
  return { config: { ...config, tiedEmbeddings: false }, tensors, notes };
}

/** The name under which a checkpoint has a tensor; the usual one if it has it under none. */
function stored(family: Family, tensors: ReadonlyMap<string, unknown>, canonical: string): string {
  const usual = checkpointName(family, canonical);
  const rest = usual.startsWith('model.') ? usual.slice('model.'.length) : usual;
  const names = [
    usual,
    ...(family.prefixes ?? []).flatMap((prefix) => [prefix + rest, `${prefix.split('.')[0]}.${rest}`]),
  ];
  return names.find((name) => tensors.has(name)) ?? usual;
}

async function equal(a: StoredTensor, b: StoredTensor): Promise<boolean> {
  const same = a.entry.dtype === b.entry.dtype && String(a.entry.shape) === String(b.entry.shape);
  if (!same) return false;
  const { bytes } = a.entry;
  for (let at = 0; at < bytes; at += COMPARED_BYTES) {
    const length = Math.min(COMPARED_BYTES, bytes - at);
    const parts = await Promise.all(
      [a, b].map(({ entry, source }) => readExactly(source, entry.offset + at, length, entry.name)),
    );
    if (Buffer.compare(parts[0]!, parts[1]!) !== 0) return false;
  }
  return true;
}
