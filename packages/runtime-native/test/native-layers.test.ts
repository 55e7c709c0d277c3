/** The layers of the native code: includes point down only. */
import { existsSync } from 'node:fs';
import { readdir, readFile } from 'node:fs/promises';
import { dirname, join, relative, sep } from 'node:path';
import { fileURLToPath } from 'node:url';
import { describe, expect, it } from 'vitest';

const NATIVE = fileURLToPath(new URL('../native', import.meta.url));
/** From the bottom to the top. */
const LAYERS = ['base', 'io', 'kernels', 'tiers', 'engine', 'addon'];

/** The files of the repository that a source includes, relative to native/. */
async function includesOf(path: string): Promise<string[]> {
  const text = await readFile(join(NATIVE, path), 'utf8');
  const included = [...text.matchAll(/^\s*#\s*include\s+"([^"]+)"/gm)].map(([, name]) => name!);
  return included.map((name) => relative(NATIVE, join(NATIVE, dirname(path), name)));
}

const layerOf = (path: string) => LAYERS.indexOf(path.split(sep)[0]!);

describe('native code', () => {
  it('lies in one folder per layer, beside its tests', async () => {
    const folders = (await readdir(NATIVE, { withFileTypes: true })).filter((entry) => entry.isDirectory());
    expect(folders.map(({ name }) => name).sort()).toEqual([...LAYERS, 'test'].sort());
  });

  it.each(LAYERS)('%s includes its own layer and those below', async (layer) => {
    const names = await readdir(join(NATIVE, layer));
    const edges = await Promise.all(
      names.map(async (name) => (await includesOf(join(layer, name))).map((to) => ({ from: name, to }))),
    );
    expect(edges.flat().filter(({ to }) => !existsSync(join(NATIVE, to)))).toEqual([]);
    const wrong = edges.flat().filter(({ to }) => layerOf(to) < 0 || layerOf(to) > LAYERS.indexOf(layer));
    expect(wrong).toEqual([]);
    expect(edges.flat().length).toBeGreaterThan(0);
  });

  it('kernels include nothing but kernels: they are compiled for instruction sets that others may lack', async () => {
    const names = await readdir(join(NATIVE, 'kernels'));
    const included = await Promise.all(names.map((name) => includesOf(join('kernels', name))));
    expect(included.flat().filter((to) => !to.startsWith(`kernels${sep}`))).toEqual([]);
  });
});
