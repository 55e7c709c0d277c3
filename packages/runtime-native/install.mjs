/**
 * Compiles the native engine into build/native/cflow.node.
 *
 *     node install.mjs          when the package is installed: a machine that cannot compile gets one line, and exit 0
 *     node install.mjs --build  as part of the build: the same without tools, but a failed compilation is an error
 *
 * CFLOW_SKIP_BUILD=1 skips both.
 */
import { fileURLToPath } from 'node:url';
import { buildAddon } from './native/build.mjs';

buildAddon(
  fileURLToPath(new URL('native', import.meta.url)),
  (reason) =>
    `cflow: native engine not built (${reason}); the reference engine, which is slower, serves instead`,
);
