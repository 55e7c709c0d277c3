/** Models that tests open, and that are closed after each. */
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll } from 'vitest';
import { Model, type OpenModelOptions } from '../src/index.js';

/** Opens models with `defaults`; to be called where a file's tests are described. */
export function modelOpener(defaults: OpenModelOptions = {}) {
  const opened: Model[] = [];
  afterEach(async () => {
    for (const model of opened.splice(0)) await model.close();
  });
  return async (path: string, options: OpenModelOptions = {}): Promise<Model> => {
    const model = await Model.open(path, { ...defaults, ...options });
    opened.push(model);
    return model;
  };
}

/** Opens models that are written to a directory of their own first; to be called where a file's tests are described. */
export function bytesOpener() {
  const open = modelOpener();
  let directory: string;
  beforeAll(async () => {
    directory = await mkdtemp(join(tmpdir(), 'cflow-test-'));
  });
  afterAll(() => rm(directory, { recursive: true }));
  return {
    directory: () => directory,
    opened: async (bytes: Uint8Array, options: OpenModelOptions): Promise<Model> => {
      const path = join(directory, 'model.cflow');
      await writeFile(path, bytes);
      return open(path, options);
    },
  };
}

/** Logits after pieces that a new session passes. */
export async function freshLogits(
  model: Model,
  pieces: readonly (readonly number[])[],
): Promise<Float32Array> {
  await using session = model.createSession();
  for (const piece of pieces) await session.prefill(piece);
  return session.logits();
}
