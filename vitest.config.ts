import { fileURLToPath } from 'node:url';
import { defineConfig } from 'vitest/config';

/** Tests run against the sources; only the CLI tests, which spawn a process, use dist/. */
const source = (name: string) => fileURLToPath(new URL(`packages/${name}/src/index.ts`, import.meta.url));

export default defineConfig({
  resolve: {
    alias: Object.fromEntries(
      ['format', 'convert', 'runtime-native', 'inspect', 'bench'].map((name) => [`@cflow/${name}`, source(name)]),
    ),
  },
  test: { include: ['packages/*/test/**/*.test.ts', 'test/**/*.test.ts'], testTimeout: 120_000, hookTimeout: 120_000 },
});
