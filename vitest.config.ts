import { fileURLToPath } from 'node:url';
import { defineConfig } from 'vitest/config';

/** Tests run against the sources; only the CLI tests, which spawn a process, use dist/. */
const source = (path: string) => fileURLToPath(new URL(`packages/${path}`, import.meta.url));
const packages = ['format', 'convert', 'runtime-native', 'inspect', 'bench', 'serve'];

export default defineConfig({
  resolve: {
    alias: [
      { find: /^#cli-kit\/(.*)\.js$/, replacement: source('cli-kit/src/$1.ts') },
      { find: /^@cflow\/([\w-]+)\/internal\/(.*)\.js$/, replacement: source('$1/src/$2.ts') },
      { find: '@cflow/format/node', replacement: source('format/src/node.ts') },
      { find: '@cflow/format/stripes', replacement: source('format/src/stripes.ts') },
      ...packages.map((name) => ({ find: `@cflow/${name}`, replacement: source(`${name}/src/index.ts`) })),
    ],
  },
  test: {
    include: ['packages/*/test/**/*.test.ts', 'test/**/*.test.ts'],
    // Vitest leaves one CPU free by default, which is half of two.
    maxWorkers: '100%',
    testTimeout: 120_000,
    hookTimeout: 120_000,
  },
});
