import { readFileSync } from 'node:fs';
import { captured } from '@cflow/test-kit/captured';
import { expect, it } from 'vitest';
// @ts-expect-error a script without types
import { committed, DOCUMENT, README } from '../../../scripts/benchmarks-doc.mjs';
// @ts-expect-error a script without types
import { renew } from '../../../scripts/format-doc.mjs';
import { main } from '../src/cli.js';
import { benchmarkSections, speedTable } from '../src/report/markdown.js';
import { type BenchResult, metric, readResult } from '../src/runner/result.js';
import { resultWith } from './results.js';

const document = readFileSync(DOCUMENT, 'utf8');

it('docs/benchmarks.md is what its generator makes of the result files; `npm run docs:benchmarks` renews it', async () => {
  expect(document).toBe(renew(document, benchmarkSections(await committed(readResult))));
});

it('the table of speed in the README is made of the result of peers', async () => {
  const readme = readFileSync(README, 'utf8');
  const table = speedTable(await committed(readResult));
  expect(readme).toBe(renew(readme, { speed: table }));
  const peer = (name: string, value: number) => metric(name, 'tok/s', 'higher', [value]);
  const figures = [
    'dense-1.1b cflow: decode',
    'dense-1.1b llama.cpp: decode',
    'dense-1.1b: decode, times llama.cpp',
  ];
  const peers = resultWith(figures.map((name, i) => peer(name, [60, 30, 2][i]!)));
  expect(speedTable({ peers })).toContain('| dense-1.1b | 60.0 / 30.0 (2.00 ×) |');
});

it('every committed result is shown: each metric by name, or tables with no fewer cells; by a command that there is', async () => {
  const results = (await committed(readResult)) as Record<string, BenchResult>;
  const { out } = await captured(main, ['--help']);
  const commands = [...out.matchAll(/^ {2}cflow-bench (\S+)/gm)].map(([, command]) => command);
  const parts = benchmarkSections(results).results!.split(/^### /m).slice(1);
  expect(parts.map((part) => part.split('\n')[0]).sort()).toEqual(Object.keys(results).sort());
  for (const part of parts) {
    const { metrics, tables = [] } = results[part.split('\n')[0]!]!;
    const cells = tables.flatMap(({ title, rows }) => {
      expect(part).toContain(`${title}:\n\n|`);
      return rows.flatMap((row) => row.slice(1));
    });
    const named = metrics.filter(({ name }) => part.includes(`| ${name} |`));
    expect(Math.max(named.length, cells.length)).toBeGreaterThanOrEqual(metrics.length);
    expect(commands).toContain(/`cflow-bench (\S+)[^`]*`/.exec(part)![1]);
  }
});

it('what the scorecard measures for itself is by the scorecard, with what was measured', () => {
  const engines = { title: 'T: engines', columns: ['engine', 'threads'], rows: [['a', 2]] };
  const metrics = [metric('a: decode', 'tok/s', 'higher', [5]), metric('a: prefill', 'tok/s', 'higher', [7])];
  const kernels = resultWith(metrics, { command: 'kernels', options: { quick: true }, tables: [engines] });
  const { results } = benchmarkSections({ kernels });
  expect(results).toContain('`cflow-bench scorecard --only kernels --quick`');
  expect(results).toContain('| a: prefill | 7.00 | tok/s |');
  expect(results).toContain('| a | 2 |');
});

it('shows another figure, and another verdict, when a result file changes', () => {
  const path = (reduction: number) =>
    benchmarkSections({
      'critical-path': resultWith([
        metric('arch2_4: naive', 'MiB', 'lower', [9]),
        metric('arch2_4: critical', 'MiB', 'lower', [9 / reduction]),
        metric('arch2_4: reduction', '×', 'higher', [reduction]),
      ]),
    });
  expect(path(2).scorecard).toContain('| **proven** | 9.00 to 4.50 MiB per token, 2.00 ×;');
  expect(path(3).scorecard).toContain('| **refuted** | 9.00 to 3.00 MiB per token, 3.00 ×;');
  expect(path(2).results).toContain('| arch2_4: critical | 4.50 | MiB |');
  expect(path(2).results).toContain('CPU: Made-up 9000, avx2; cores: 4 of 8 (cgroup quota of 4 CPUs)');
});

it('lists what stands in tables once, and lets no cell end a row', () => {
  const table = {
    title: 'T',
    columns: ['', 'n'],
    rows: [
      ['a|b\nc', 1234.5],
      ['whole', 12345],
      ['none', null],
    ],
  };
  const { results } = benchmarkSections({
    other: resultWith([metric('m', 's', 'lower', [1])], { tables: [table] }),
  });
  expect(results).toContain(
    'T:\n\n|  | n |\n|---|---|\n| a\\|b c | 1,235 |\n| whole | 12,345 |\n| none |  |',
  );
  expect(results).not.toContain('| m |');
});
