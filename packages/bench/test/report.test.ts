import { mkdtemp, readdir, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { captured } from '@cflow/test-kit/captured';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { main } from '../src/cli.js';
import { chartSvg, scaleOf } from '../src/report/charts.js';
import { compareResults, parseThreshold } from '../src/report/compare.js';
import { chartsOf, reportHtml } from '../src/report/page.js';
import { significant, spreadText } from '../src/report/text.js';
import { type Metric, metric, writeResult } from '../src/runner/result.js';
import { decodePng } from './png.js';
import { MACHINE, resultWith } from './results.js';

let dir: string;
beforeEach(async () => {
  dir = await mkdtemp(join(tmpdir(), 'cflow-report-test-'));
});
afterEach(() => rm(dir, { recursive: true }));

const speed = (...runs: number[]) => metric('decode', 'tok/s', 'higher', runs);
const time = (...runs: number[]) => metric('open', 's', 'lower', runs);

describe('compare', () => {
  it.each([
    ['faster is better', speed(100), speed(110), 0.1, false],
    ['slower is worse', speed(100), speed(90), -0.1, true],
    ['slower within the threshold', speed(100), speed(95), -0.05, false],
    ['longer is worse', time(2), time(3), -0.5, true],
    ['shorter is better', time(2), time(1), 0.5, false],
    ['the same', time(2), time(2), 0, false],
    ['by the median, not the mean', speed(1, 100, 1000), speed(99, 99, 99), -0.01, false],
    ['from nothing to something', time(0), time(1), Number.NEGATIVE_INFINITY, true],
  ])('%s', (_, before, after, gain, worse) => {
    const compared = compareResults(resultWith([before]), resultWith([after]), 0.05);
    expect(compared.changes[0]!.gain).toBeCloseTo(gain, 12);
    expect([compared.changes[0]!.worse, compared.worse]).toEqual([worse, worse]);
  });

  it('says what overlaps, what is gone, what is new, and what else differs', () => {
    const before = resultWith([speed(90, 100, 110), time(1)]);
    const machine = { ...MACHINE, cpu: 'Other 1' };
    const after = resultWith([speed(70, 80, 91), metric('new', '', 'lower', [1])], { machine });
    expect(compareResults(before, after, 0.05)).toMatchObject({
      changes: [{ name: 'decode', overlap: true, worse: true }],
      missing: ['open'],
      added: ['new'],
      differences: ['cpu: Made-up 9000 before, Other 1 after'],
    });
    const apart = compareResults(before, resultWith([speed(70, 80, 89)]), 0.05);
    expect(apart.changes[0]!.overlap).toBe(false);
  });

  it('refuses results without a metric in common, and units that differ are none', () => {
    const other = metric('decode', 'ms', 'lower', [1]);
    expect(() => compareResults(resultWith([speed(1)]), resultWith([other]), 0.05)).toThrowError(
      'no metric in common',
    );
  });

  it.each([
    ['5%', 0.05],
    ['0.05', 0.05],
    ['12.5 %', 0.125],
    ['0', 0],
  ])('a threshold of %s', (text, share) => {
    expect(parseThreshold(text)).toBe(share);
  });
  it.each(['', '-5%', 'five', '5%%'])('%j is no threshold', (text) => {
    expect(() => parseThreshold(text)).toThrowError('--threshold is');
  });

  it('exits 1 where something is worse by more, 0 where not, 4 where a file is no result', async () => {
    const [a, b] = [join(dir, 'a.json'), join(dir, 'b.json')];
    await writeResult(a, resultWith([speed(100)]));
    await writeResult(b, resultWith([speed(90)]));
    const run = async (...args: string[]) => captured(main, ['compare', ...args]);
    expect(await run(a, b)).toMatchObject({ code: 1, out: expect.stringContaining('WORSE') });
    expect(await run(a, b, '--threshold', '10%')).toMatchObject({ code: 0 });
    expect(await run(b, a)).toMatchObject({ code: 0, out: expect.stringContaining('+11.1 %') });
    expect(await run(a, join(import.meta.dirname, '../package.json'))).toMatchObject({ code: 4 });
  });
});

describe('figures as text', () => {
  it.each([
    [60.64, '60.6'],
    [1234.5, '1,235'],
    [0.012345, '0.0123'],
    [1, '1.00'],
    [0, '0'],
    [-2.5, '-2.50'],
    [999.6, '1,000'],
  ])('%d is %s', (value, text) => {
    expect(significant(value)).toBe(text);
  });
  it('has extremes where there are any', () => {
    expect(spreadText({ median: 2, min: 1, max: 3 })).toBe('2.00 (1.00–3.00)');
    expect(spreadText({ median: 2, min: 2, max: 2 })).toBe('2.00');
  });
});

const hostile = '<script>alert(1)</script>&"x"';

describe('report', () => {
  const first = resultWith([speed(10, 20, 40), time(1)]);
  const second = resultWith([speed(30), metric(hostile, 'tok/s', 'higher', [5])]);
  const results = [
    { name: 'first', result: first },
    { name: 'second', result: second },
  ];

  it('has a chart for each unit of a command, with a series for each result', () => {
    const charts = chartsOf(results);
    expect(charts.map(({ key, unit }) => [key, unit])).toEqual([
      ['decode-tok-s-higher', 'tok/s'],
      ['decode-s-lower', 's'],
    ]);
    expect(charts[0]!.series.map(({ name, metrics }) => [name, metrics.length])).toEqual([
      ['first', 1],
      ['second', 2],
    ]);
  });

  const share = (name: string, better: Metric['better'], ...runs: number[]) =>
    metric(name, '%', better, runs);

  it('has one direction in each chart, that of its title: of one unit, even of one figure', () => {
    const mixed = resultWith([
      share('a: stalled', 'lower', 70),
      share('b: stalled', 'lower', 60),
      share('a: found in memory', 'higher', 50),
      share('b: found in memory', 'higher', 40),
      share('a: model off', 'lower', 3),
      share('computing', 'higher', 80),
      share('c: stalled', 'higher', 1),
    ]);
    const charts = chartsOf([{ name: 'only', result: mixed }]);
    expect(
      charts.map(({ title, key, series: [only] }) => [title, key, only!.metrics.map(({ name }) => name)]),
    ).toEqual([
      ['decode: stalled, %, lower is better', 'decode-stalled-percent-lower', ['a', 'b']],
      ['decode: found in memory, %, higher is better', 'decode-found-in-memory-percent-higher', ['a', 'b']],
      ['decode: %, lower is better', 'decode-percent-lower', ['a: model off']],
      ['decode: %, higher is better', 'decode-percent-higher', ['computing', 'c: stalled']],
    ]);
    for (const { title, series } of charts)
      for (const { better } of series.flatMap(({ metrics }) => metrics))
        expect(title).toContain(`${better} is better`);
  });

  it('has rows of one model next to one another, figure by figure', () => {
    const names = ['m cflow: decode', 'm cflow: open', 'm llama.cpp: decode', 'm llama.cpp: open'];
    const result = resultWith(names.map((name) => metric(name, 's', 'lower', [1])));
    const rows = chartsOf([{ name: 'only', result }]).map(({ series }) =>
      series[0]!.metrics.map(({ name }) => name),
    );
    expect(rows).toEqual([
      ['m cflow', 'm llama.cpp'],
      ['m cflow', 'm llama.cpp'],
    ]);
  });

  it('parts what is long where names begin otherwise, and gives each part a name', () => {
    const names = ['LRU', 'LFU', 'best'].flatMap((policy) =>
      Array.from({ length: 20 }, (_, size) => `${policy}, ${size} %: hits`),
    );
    const result = resultWith(names.map((name, index) => share(name, 'higher', index + 1)));
    const charts = chartsOf([{ name: 'only', result }]);
    expect(charts.map(({ key, series }) => [key, series[0]!.metrics.length])).toEqual([
      ['decode-hits-percent-higher-1', 40],
      ['decode-hits-percent-higher-2', 20],
    ]);
    expect(charts.map(({ whole }) => whole)).toEqual([
      { min: 1, max: 60 },
      { min: 1, max: 60 },
    ]);
    expect(charts[1]!.title).toBe('decode: hits, %, higher is better, part 2 of 2');
    const height = Number(/height="(\d+)"/.exec(chartSvg(charts[0]!))![1]);
    expect(height).toBeLessThan(1200);
  });

  it.each([
    ['what just does not fit', 7, 7, [28, 21]],
    ['rows that all begin alike', 1, 100, [48, 48, 4]],
    ['what fits', 6, 8, [48]],
  ])('parts evenly, none with more than it may have: %s', (_, kinds, each, sizes) => {
    const names = Array.from({ length: kinds * each }, (_, i) => `k${i % kinds}, ${i}: hits`);
    const result = resultWith(names.map((name) => share(name, 'higher', 1)));
    const charts = chartsOf([{ name: 'only', result }]);
    expect(charts.map(({ series }) => series[0]!.metrics.length)).toEqual(sizes);
  });

  it('gives results the same colours in all parts, whether they have bars there or not', () => {
    const [many, few] = [50, 1].map((rows) =>
      resultWith(Array.from({ length: rows }, (_, i) => share(`k${i}: hits`, 'higher', 1))),
    );
    const charts = chartsOf([
      { name: 'few', result: few! },
      { name: 'many', result: many! },
    ]);
    expect(charts.length).toBeGreaterThan(1);
    for (const { series } of charts) expect(series.map(({ name }) => name)).toEqual(['few', 'many']);
  });

  it('tells charts apart whose figures differ in signs alone', () => {
    const names = ['a: r+', 'b: r+', 'a: r-', 'b: r-'];
    const keys = chartsOf([
      { name: 'x', result: resultWith(names.map((name) => share(name, 'lower', 1))) },
    ]).map(({ key }) => key);
    expect(new Set(keys).size).toBe(2);
  });

  it.each([
    ['alike', [1, 49], { type: 'value' }],
    ['below nothing', [-5, 1000], { type: 'value' }],
    [
      'far apart, from a power of ten below the least',
      [0.02, 3],
      { type: 'log', min: 0.01, startValue: 0.01 },
    ],
    ['far apart, the least a power of ten', [10, 1000], { type: 'log', min: 1, startValue: 1 }],
  ])('the axis of figures that are %s', (_, runs, scale) => {
    expect(scaleOf(speed(...runs))).toEqual(scale);
  });

  it.each([
    [[1, 41], { type: 'value', min: 0, max: 50 }],
    [[-7, 41], { type: 'value', min: -7, max: 50 }],
    [[0.3, 300], { type: 'log', min: 0.1, startValue: 0.1, max: 1000 }],
  ])('parts share one axis: of %j', (runs, scale) => {
    expect(scaleOf(speed(...runs), true)).toEqual(scale);
  });

  it('lists its results and charts, each a link to what is there', () => {
    const html = reportHtml(results);
    const targets = [...html.matchAll(/<a href="#([^"]+)">/g)].map(([, id]) => id!);
    expect(targets).toEqual(['result-0', 'result-1', 'chart-decode-tok-s-higher', 'chart-decode-s-lower']);
    for (const id of targets) expect(html.split(`id="${id}"`).length).toBe(2);
  });

  it('is a page of its own: no script, nothing to fetch, every text harmless', () => {
    const html = reportHtml(results);
    expect(html.match(/<svg /g)?.length).toBe(2);
    expect(html).not.toMatch(/<script|<link|<img|@import|url\(http/);
    expect(html).toContain('&lt;script&gt;alert(1)&lt;/script&gt;&amp;&quot;x&quot;');
    expect(html).toContain('<td>20.0</td><td>10.0</td><td>40.0</td><td>3</td>');
  });

  it('writes the page and a file for each chart', async () => {
    const file = join(dir, 'r.json');
    await writeResult(file, first);
    const [page, charts] = [join(dir, 'r.html'), join(dir, 'charts')];
    const { code, out } = await captured(main, ['report', file, '--output', page, '--svg', charts]);
    expect([code, out.split('\n').length]).toEqual([0, 4]);
    expect(await readFile(page, 'utf8')).toMatch(/^<!doctype html>[\s\S]*<\/html>\n$/);
    expect((await readdir(charts)).sort()).toEqual(['decode-s-lower.svg', 'decode-tok-s-higher.svg']);
    expect(await readFile(join(charts, 'decode-s-lower.svg'), 'utf8')).toMatch(/^<svg [\s\S]*<\/svg>$/);
  });

  it('draws pictures of charts: as large as they are, with the colour of bars on white, and with text', async () => {
    const file = join(dir, 'r.json');
    await writeResult(file, resultWith([speed(10, 20, 40)]));
    const { code } = await captured(main, ['report', file, '--png', dir, '--svg', dir]);
    expect(code).toBe(0);
    const [svg, png] = [
      await readFile(join(dir, 'decode-tok-s-higher.svg'), 'utf8'),
      await readFile(join(dir, 'decode-tok-s-higher.png')),
    ];
    const { width, height, pixels } = decodePng(png);
    expect([width, height]).toEqual(
      ['width', 'height'].map((side) => 2 * Number(new RegExp(`${side}="(\\d+)"`).exec(svg)![1])),
    );
    const at = (x: number, y: number) => [...pixels.subarray(4 * (y * width + x), 4 * (y * width + x) + 3)];
    expect(at(0, 0)).toEqual([255, 255, 255]);
    // The bar begins at the axis, 120 units from the left as the name is short, in the middle between 62 units above and 40 below.
    expect(at(2 * 300, (2 * 62 + (height - 2 * 48)) / 2)).toEqual([0, 0x72, 0xb2]);
    // The title is written within the first 30 units.
    expect(pixels.subarray(0, 4 * 60 * width).some((value) => value < 128)).toBe(true);
  });

  it('has something to write, or says so', async () => {
    expect(await captured(main, ['report', 'x.json'])).toMatchObject({ code: 2 });
  });
});
