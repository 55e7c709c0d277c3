/** `npm run demo`, without its build. */
import { execFile } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { nativeMachine } from '@cflow/runtime-native/internal/native/machine.js';
import { expect, test } from 'vitest';

test('the demo converts, inspects, says what the delays are worth, and tells a story', async () => {
  const script = fileURLToPath(new URL('../scripts/demo.mjs', import.meta.url));
  const { stdout } = await promisify(execFile)(process.execPath, [script]);
  expect(stdout.match(/, verified$/gm)).toHaveLength(2);
  for (const container of ['cflow', 'vflow']) {
    expect(stdout).toContain(`$ cflow-convert models/stories-arch2_4 stories.${container} --verify`);
  }
  expect(stdout).toMatch(/^combine +delayedSum/m);
  const [, naive, critical, gain] = stdout.match(/Per token (.*) MiB .* delayed, (.*) MiB: (.*) times less/)!;
  expect(Number(gain)).toBeGreaterThan(1);
  expect(Math.abs(Number(naive) / Number(critical) / Number(gain) - 1)).toBeLessThan(0.05);
  const story = stdout.split('--seed 7\n')[1]!.split('\n──')[0]!;
  expect(story.split(/\s+/).length).toBeGreaterThan(50);
  expect(stdout).toContain(nativeMachine() ? 'Both wrote the same: Once upon a time' : 'has not been built');
  expect(stdout.split('\n').every((line) => !line.startsWith('They differ'))).toBe(true);
});
