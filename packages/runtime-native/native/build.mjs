/** Compiles an addon by its Makefile: that of this folder, and that of packages/bench. */
import { spawnSync } from 'node:child_process';
import { availableParallelism } from 'node:os';

const runs = (command, args) => spawnSync(command, args, { stdio: 'ignore' }).status === 0;

/** Why nothing can be compiled here; undefined if it can. */
function missing() {
  if (process.platform === 'win32') return 'not on Windows yet';
  if (!runs('make', ['--version'])) return 'make not found';
  const compiler = process.env.CXX ?? 'g++';
  return runs(compiler, ['--version']) ? undefined : `${compiler} not found; install it or set CXX`;
}

/**
 * A machine that cannot compile gets one line, which says why, and exit 0. With --build among the arguments a failed
 * compilation is an error. CFLOW_SKIP_BUILD=1 skips both.
 *
 * @param directory of the Makefile
 * @param without(reason) the line
 */
export function buildAddon(directory, without) {
  if (process.env.CFLOW_SKIP_BUILD === '1') return;
  const reason = missing();
  if (reason) return console.error(without(reason));
  const jobs = `-j${Math.min(8, availableParallelism())}`;
  const { status, stderr } = spawnSync('make', ['-C', directory, '--no-print-directory', jobs], {
    encoding: 'utf8',
    stdio: ['ignore', 'ignore', 'pipe'],
    maxBuffer: 64 * 1024 * 1024,
  });
  if (status === 0) return;
  if (process.argv.includes('--build')) {
    process.stderr.write(stderr);
    process.exitCode = 1;
    return;
  }
  const lines = stderr.trim().split('\n');
  const line = lines.find((text) => /error/i.test(text)) || lines.at(-1) || 'make failed';
  console.error(without(`compilation failed: ${line.trim()}`));
}
