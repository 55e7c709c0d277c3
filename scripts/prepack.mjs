/**
 * Before a package is packed, in its folder: what dist/ has from sources that are gone is removed, and a package that
 * has not been built is refused.
 */
import { existsSync, readdirSync, rmSync } from 'node:fs';
import { join } from 'node:path';

const OUTPUT = /(\.d\.ts|\.js|\.js\.map)$/;
const files = existsSync('dist') ? readdirSync('dist', { recursive: true, withFileTypes: true }) : [];
const outputs = files
  .filter((entry) => entry.isFile() && OUTPUT.test(entry.name))
  .map(({ parentPath, name }) => join(parentPath, name));
const sourceOf = (output) =>
  output
    .replace(OUTPUT, '.ts')
    .replace(/^dist\/cli-kit\b/, '../cli-kit/src')
    .replace(/^dist\b/, 'src');

for (const output of outputs) if (!existsSync(sourceOf(output))) rmSync(output);
if (!existsSync(join('dist', 'index.js'))) {
  console.error('dist/index.js: missing (run npm run build first)');
  process.exitCode = 1;
}
