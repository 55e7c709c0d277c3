/**
 * Compiles the addon of the experiments into build/native/cflow-bench.node, as install.mjs of @cflow/runtime-native does
 * with the engine: the same argument, the same CFLOW_SKIP_BUILD.
 */
import { createRequire } from 'node:module';
import { dirname, join } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';

const runtime = dirname(createRequire(import.meta.url).resolve('@cflow/runtime-native/package.json'));
const { buildAddon } = await import(pathToFileURL(join(runtime, 'native/build.mjs')).href);

buildAddon(
  fileURLToPath(new URL('native', import.meta.url)),
  (reason) => `cflow-bench: addon not built (${reason}); cache, l1d and storage need it`,
);
