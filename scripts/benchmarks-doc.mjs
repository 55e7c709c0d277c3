/**
 * Keeps docs/benchmarks.md and the table of speed in README.md in step with packages/bench/results: everything between `<!-- generated:NAME -->` and
 * `<!-- /generated -->` is made from the result files there.
 *
 *     node scripts/benchmarks-doc.mjs           compares; exit 1 if the document is out of date
 *     node scripts/benchmarks-doc.mjs --write   rewrites
 */
import { readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { renew } from './format-doc.mjs';

const at = (path) => fileURLToPath(new URL(`../${path}`, import.meta.url));
export const DOCUMENT = at('docs/benchmarks.md');
const RESULTS = at('packages/bench/results');

/** The result files by name, each as `read` gives it. */
export async function committed(read) {
  const names = readdirSync(RESULTS).filter((name) => name.endsWith('.json'));
  const results = names.sort().map(async (name) => [name.slice(0, -5), await read(`${RESULTS}/${name}`)]);
  return Object.fromEntries(await Promise.all(results));
}

export const README = at('README.md');

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const { benchmarkSections, readResult, speedTable } = await import('@cflow/bench');
  const results = await committed(readResult);
  const parts = { [DOCUMENT]: benchmarkSections(results), [README]: { speed: speedTable(results) } };
  for (const [file, sections] of Object.entries(parts)) {
    const document = readFileSync(file, 'utf8');
    const renewed = renew(document, sections);
    if (process.argv.includes('--write')) writeFileSync(file, renewed);
    else if (renewed !== document) {
      process.stderr.write(`${file} is out of date: npm run docs:benchmarks\n`);
      process.exitCode = 1;
    }
  }
}
