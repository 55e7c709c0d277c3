/**
 * Compiles the native engine into build/native/cflow.node.
 *
 *     node install.mjs          when the package is installed: a machine that cannot compile gets one line, and exit 0
 *     node install.mjs --build  as part of the build: the same without tools, but a failed compilation is an error
 *
 * CFLOW_SKIP_BUILD=1 skips both.
 */
import { spawnSync } from 'node:child_process';
import { availableParallelism } from 'node:os';
import { fileURLToPath } from 'node:url';

const NATIVE = fileURLToPath(new URL('native', import.meta.url));
const building = process.argv.includes('--build');

/** One line for people: what is missing, and what serves instead. */
function without(reason) {
  console.error(
    `cflow: native engine not built (${reason}); the reference engine, which is slower, serves instead`,
  );
}

const runs = (command, args) => spawnSync(command, args, { stdio: 'ignore' }).status === 0;

/** Why nothing can be compiled here; undefined if it can. */
function missing() {
  if (process.platform === 'win32') return 'not on Windows yet';
  if (!runs('make', ['--version'])) return 'make not found';
  const compiler = process.env.CXX ?? 'g++';
  return runs(compiler, ['--version']) ? undefined : `${compiler} not found; install it or set CXX`;
}

function compile() {
  const jobs = `-j${Math.min(8, availableParallelism())}`;
  const { status, stderr } = spawnSync('make', ['-C', NATIVE, '--no-print-directory', jobs], {
    encoding: 'utf8',
    stdio: ['ignore', 'ignore', 'pipe'],
    maxBuffer: 64 * 1024 * 1024,
  });
  if (status === 0) return;
  if (building) {
    process.stderr.write(stderr);
    process.exitCode = 1;
    return;
  }
  const reason = stderr.split('\n').find((line) => /error/i.test(line)) ?? 'make failed';
  without(`compilation failed: ${reason.trim()}`);
}

if (process.env.CFLOW_SKIP_BUILD !== '1') {
  const reason = missing();
  if (reason) without(reason);
  else compile();
}
