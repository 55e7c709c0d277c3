/** Memory of the process besides the model: what a budget sets aside for it. Pure, so that one budget has one answer. */

/** Peak of cflow-run with a small tokenizer is 88 MB (Node 20); it holds 78 MB when the budget is divided. */
const PLAIN = 96e6;
/** Peak bytes for a byte of metadata, most of it the tokenizer: 15 for Qwen 3, 20 for Llama 3. */
const TOKENIZER = 20;
/** Of these, at most so many are in use when the budget is divided, depending on the garbage collector. */
const PARSED = 8;
/** A larger process is counted in these steps, since its size fluctuates. */
const STEP = 2 ** 24;

export interface ProcessMemory {
  /** Resident set size, bytes. */
  readonly rss: number;
  /** Length of the file's metadata document. */
  readonly metadataBytes: number;
  /** What this process was last counted as. */
  readonly before: number;
}

export interface CountedProcess {
  readonly bytes: number;
  /** What another process like it may be counted in addition, bytes. */
  readonly margin: number;
}

/** Bytes to set aside. They follow from the file alone unless the process holds more than cflow-run does. */
export function countProcess({ rss, metadataBytes, before }: ProcessMemory): CountedProcess {
  const plain = PLAIN + TOKENIZER * metadataBytes;
  const expected = rss + (TOKENIZER - PARSED) * metadataBytes;
  const unchanged = before > plain && expected <= before && expected > before - 2 * STEP;
  if (unchanged) return { bytes: before, margin: STEP };
  if (expected <= plain) return { bytes: plain, margin: 0 };
  return { bytes: Math.max(plain, STEP * Math.ceil((expected + STEP / 2) / STEP)), margin: STEP };
}
