import { readdir, readFile } from 'node:fs/promises';
import { describe, expect, it } from 'vitest';

const SOURCES = new URL('../src/', import.meta.url);
const NODE_ENTRY = 'node.ts';
/** What `@cflow/format/node` consists of. */
const NODE_FILES = [NODE_ENTRY, 'checks.ts', 'package-version.ts', 'target.ts'];

/** Module names that a source imports. */
async function imports(name: string): Promise<string[]> {
  const text = await readFile(new URL(name, SOURCES), 'utf8');
  return [...text.matchAll(/(?:from|import) ?\(?'([^']+)'/g)].map(([, module]) => module!);
}

describe('packages/format runs in a browser', async () => {
  const sources = (await readdir(SOURCES, { recursive: true })).filter((name) => name.endsWith('.ts'));
  const files = sources.filter((name) => !NODE_FILES.includes(name));

  it.each(files)('%s imports its neighbours and zod alone', async (name) => {
    const foreign = (await imports(name)).filter(
      (module) => !/^(\.|\.\.)\/([\w-]+\/)?[\w-]+\.js$/.test(module) && module !== 'zod',
    );
    expect(foreign).toEqual([]);
    const node = NODE_FILES.map((file) => file.replace('.ts', '.js'));
    expect((await imports(name)).filter((module) => node.includes(module.replace(/^\.{1,2}\//, '')))).toEqual(
      [],
    );
  });

  it.each(files)('%s uses nothing that only Node has', async (name) => {
    const text = await readFile(new URL(name, SOURCES), 'utf8');
    expect(text).not.toMatch(/\b(Buffer|process|require|__dirname|setImmediate)\b[.(]/);
  });

  it('finds the import that makes the Node entry one', async () => {
    expect(await imports(NODE_ENTRY)).toContain('node:fs/promises');
  });
});
