/** Builds the native tests of the engine and of the disk tier and runs them. Needs make and a C++20 compiler. */
import { execFileSync } from 'node:child_process';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { describe, expect, it } from 'vitest';

const native = fileURLToPath(new URL('../native/', import.meta.url));
const build = fileURLToPath(new URL('../build/native', import.meta.url));
const MINUTE = 60_000;

/** What hangs is killed, and fails. */
const run = (command: string, ...args: string[]): string =>
  execFileSync(command, args, { encoding: 'utf8', stdio: ['ignore', 'pipe', 'pipe'], timeout: 4 * MINUTE });

describe('native programs', () => {
  it.each([
    ['memory-test', 8],
    ['sigbus-test', 500],
    ['team-test', 1000],
    ['program-test', 40],
    ['engine-test', 300],
    ['tier-test', 10_000],
    ['spill-test', 5000],
  ])('%s', { timeout: 9 * MINUTE }, (name, least) => {
    run('make', '-C', native, `../build/native/${name}`);
    const [, checks] = new RegExp(`^${name}: (\\d+) checks\\n$`, 'm').exec(run(join(build, name))) ?? [];
    expect(Number(checks)).toBeGreaterThan(least);
  });

  it('pressure-test, one refusal in 53', { timeout: 9 * MINUTE }, () => {
    run('make', '-C', native, '../build/native/pressure-test');
    expect(run(join(build, 'pressure-test'), '53')).toMatch(
      /spilling, \d+ calls, each and all after it\n.* checks\n$/,
    );
  });
});
