/** The cases that users reported, as `node scripts/field-cases.mjs` runs them. */
import { execFile } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { expect, test } from 'vitest';

test('every reported case ends as it should', async () => {
  const script = fileURLToPath(new URL('../scripts/field-cases.mjs', import.meta.url));
  const lines = await new Promise<string>((resolve) => {
    execFile(process.execPath, [script], (_error, stdout, stderr) => resolve(stdout + stderr));
  });
  expect(lines).toMatch(/^\d+ cases, 0 failed$/m);
  expect(lines).not.toContain('out of date');
});
