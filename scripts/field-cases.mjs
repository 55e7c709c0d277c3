/**
 * Runs the small inputs of every case that users reported (test/field-cases/*.mjs) and prints a line each. Exit 1 if
 * one of them is not as it should be.
 *
 *     npm run build && node scripts/field-cases.mjs [id …]
 *     node scripts/field-cases.mjs --write      writes the table of docs/field-cases.md, and runs nothing
 *
 * A module exports by default an array of { id, kind, test, run }: `test` is the path of the test that proves the whole
 * kind, `run(tools)` returns one line of what happened, or throws.
 */
import { existsSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { makeTools } from './field-case-tools.mjs';
import { renew } from './format-doc.mjs';

const root = new URL('..', import.meta.url);
const folder = new URL('test/field-cases/', root);
const wanted = new Set(process.argv.slice(2));

const modules = readdirSync(folder).filter((name) => name.endsWith('.mjs'));
const cases = (await Promise.all(modules.map((name) => import(new URL(name, folder))))).flatMap(
  (module) => module.default,
);
const order = (id) => Number.parseFloat(id) || Number.MAX_SAFE_INTEGER;
cases.sort((a, b) => order(String(a.id)) - order(String(b.id)));

/** One case in a directory of its own, which is removed. */
async function outcomeOf({ test, run }) {
  if (!existsSync(new URL(test, root))) return { ok: false, line: `no test at ${test}` };
  const tools = makeTools(fileURLToPath(root));
  try {
    return { ok: true, line: String(await run(tools)).split('\n')[0] };
  } catch (error) {
    return {
      ok: false,
      line: String(error.message ?? error)
        .replaceAll('\n', ' ')
        .slice(0, 400),
    };
  } finally {
    rmSync(tools.directory, { recursive: true, force: true });
  }
}

/** A row for each case: the test files in the order of its inputs. */
function caseTable() {
  const rows = new Map();
  for (const one of cases) {
    const id = String(one.id).replace(/^(\d+)[a-z]+$/, '$1');
    rows.set(id, [...(rows.get(id) ?? []), one]);
  }
  const lines = [...rows].map(([id, own]) => {
    const tests = [...new Set(own.map(({ test }) => `\`${test}\``))];
    return `| ${id} | ${own.map(({ kind }) => kind).join('; ')} | ${tests.join(', ')} |`;
  });
  return ['| case | inputs | tests |', '| --- | --- | --- |', ...lines].join('\n');
}

const document = new URL('docs/field-cases.md', root);
if (wanted.delete('--write')) {
  writeFileSync(document, renew(readFileSync(document, 'utf8'), { cases: caseTable() }));
  process.exit();
}
if (
  wanted.size === 0 &&
  renew(readFileSync(document, 'utf8'), { cases: caseTable() }) !== readFileSync(document, 'utf8')
) {
  console.error('docs/field-cases.md is out of date; run node scripts/field-cases.mjs --write');
  process.exitCode = 1;
}

let failed = 0;
let count = 0;
for (const one of cases) {
  if (wanted.size > 0 && !wanted.has(String(one.id))) continue;
  const { ok, line } = await outcomeOf(one);
  console.log(`${ok ? 'ok  ' : 'FAIL'} ${String(one.id).padEnd(4)} ${one.kind}: ${line}`);
  count++;
  if (!ok) failed++;
}
console.log(`${count} cases, ${failed} failed`);
if (failed > 0 || count === 0) process.exitCode = 1;
