import { availableParallelism } from 'node:os';
import { expect, it } from 'vitest';
import { parseQuota, threadBudget } from '../src/threads.js';

it.each([
  ['max 100000\n', undefined],
  ['150000 100000\n', 1.5],
  ['400000 100000', 4],
  ['50000 100000', 0.5],
  ['-1 100000', undefined],
  ['', undefined],
  ['100000', undefined],
  ['nonsense 100000', undefined],
])('quota %j is %s CPUs', (text, cpus) => {
  expect(parseQuota(text)).toBe(cpus);
});

it('is at least one thread and at most what this process may use', async () => {
  const { threads, reason } = await threadBudget();
  expect(threads).toBeGreaterThanOrEqual(1);
  expect(threads).toBeLessThanOrEqual(availableParallelism());
  expect(reason).toMatch(/CPUs/);
});
