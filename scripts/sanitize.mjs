/**
 * The native code under a sanitizer: the native tests, and the addon itself under stress in a Node that preloads the
 * sanitizer. Exit 1 at the first finding.
 *
 *     npm run build && node scripts/sanitize.mjs [address] [undefined] [thread] [--rounds 60] [--only addon|tests]
 *
 * All three if none is named. Minutes each.
 */
import { execFileSync, spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { convert } from '../packages/convert/dist/index.js';

const root = fileURLToPath(new URL('..', import.meta.url));
const native = join(root, 'packages/runtime-native/native');
const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: { rounds: { type: 'string', default: '60' }, only: { type: 'string' } },
});

/** The library that Node preloads, and what is not the addon's: V8 frees little when it ends, and is not instrumented. */
const SANITIZERS = {
  address: { library: 'libasan.so', env: { ASAN_OPTIONS: 'detect_leaks=0' } },
  undefined: { library: 'libubsan.so', env: { UBSAN_OPTIONS: 'print_stacktrace=1' } },
  thread: {
    library: 'libtsan.so',
    env: { TSAN_OPTIONS: 'ignore_noninstrumented_modules=1:report_signal_unsafe=0' },
    // It replaces mmap and pthread_create, which this sanitizer needs before it has started.
    without: ['pressure'],
  },
};
const TESTS = ['kernel', 'memory', 'sigbus', 'team', 'program', 'pressure', 'io', 'engine', 'tier', 'spill'];
/** What takes longer than its findings are worth, shortened: one refusal in 7, 100 random faults. */
const ARGUMENTS = { pressure: ['7'], io: ['100'] };

function run(command, args, options = {}) {
  const { status, signal } = spawnSync(command, args, { stdio: 'inherit', cwd: root, ...options });
  if (status !== 0) throw new Error(`${[command, ...args].join(' ')}: ${signal ?? `exit ${status}`}`);
}

function nativeTests(name, build) {
  run('make', ['-C', native, '-j2', `SAN=${name}`, 'tests'], { stdio: ['ignore', 'ignore', 'inherit'] });
  const { without = [] } = SANITIZERS[name];
  for (const test of TESTS.filter((each) => !without.includes(each)))
    run(join(build, `${test}-test`), ARGUMENTS[test] ?? []);
}

function addon(name, build, model) {
  run('make', ['-C', native, '-j2', `SAN=${name}`, 'addon'], { stdio: ['ignore', 'ignore', 'inherit'] });
  const { library, env } = SANITIZERS[name];
  const path = execFileSync(process.env.CXX ?? 'g++', [`-print-file-name=${library}`], {
    encoding: 'utf8',
  }).trim();
  const stress = join(root, 'packages/runtime-native/test/native-stress.mjs');
  const preloaded = { ...process.env, ...env, LD_PRELOAD: path };
  const command = [process.execPath, stress, join(build, 'cflow.node'), model, values.rounds];
  // The thread sanitizer wants the addresses of a process to be where it expects them.
  run('setarch', ['-R', ...command], { env: preloaded });
}

const directory = mkdtempSync(join(tmpdir(), 'cflow-sanitize-'));
try {
  const model = join(directory, 'small.cflow');
  await convert({ source: join(root, 'packages/runtime-native/test/golden/arch2_4'), output: model });
  for (const name of positionals.length ? positionals : Object.keys(SANITIZERS)) {
    const build = join(root, `packages/runtime-native/build/native-${name}`);
    if (values.only !== 'tests') addon(name, build, model);
    if (values.only !== 'addon') nativeTests(name, build);
    console.log(`${name}: no findings`);
  }
} catch (error) {
  console.error(error.message);
  process.exitCode = 1;
} finally {
  rmSync(directory, { recursive: true, force: true });
}
