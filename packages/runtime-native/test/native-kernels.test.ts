/** Builds the native kernels and runs their own test for every instruction set that this CPU has. Needs make and a C++20 compiler. */
import { execFileSync } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { describe, expect, it } from 'vitest';

const native = fileURLToPath(new URL('../native/', import.meta.url));
const build = fileURLToPath(new URL('../build/native/', import.meta.url));
const binary = `${build}kernel-test`;

const run = (command: string, ...args: string[]): string =>
  execFileSync(command, args, { encoding: 'utf8', stdio: ['ignore', 'pipe', 'pipe'], timeout: 240_000 });

// Built while tests are collected: the list of instruction sets comes from the binary.
run('make', '-C', native, '../build/native/kernel-test');
const sets = run(binary, '--list').trim().split('\n');

/** Symbols of one unit that other units could share or replace, as `nm` prints them. */
function weakSymbols(unit: string): string[] {
  const symbols = run('nm', `${build}kernels/${unit}.o`).split('\n');
  return symbols.filter((line) => /^[0-9a-f]* [WwVvu] /.test(line));
}

describe('native kernels', () => {
  it('end with the scalar set, each named once', () => {
    expect(sets.at(-1)).toBe('scalar');
    expect(new Set(sets).size).toBe(sets.length);
  });

  it.each(sets)('%s agrees with the definitions', (isa) => {
    const [, ran, checks] = /^(\w+): (\d+) checks passed\n$/.exec(run(binary, isa)) ?? [];
    expect(ran).toBe(isa);
    expect(Number(checks)).toBeGreaterThan(1_000_000);
  });

  it('refuses to run a set that does not exist', () => {
    expect(() => run(binary, 'mmx')).toThrow(/this CPU cannot run mmx/);
  });

  // The linker keeps one copy of a shared inline function: it could be the one with instructions that the CPU lacks.
  it.each(sets)('%s shares no inline function with other units', (isa) => {
    expect(weakSymbols(isa)).toEqual([]);
  });
});
