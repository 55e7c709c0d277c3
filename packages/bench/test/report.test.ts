import { mkdtemp, readdir, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { captured } from '../../runtime-native/test/helpers.js';
import { main } from '../src/cli.js';
import { metric, writeResult } from '../src/harness/result.js';
import { parseThreshold } from '../src/report/cli-compare.js';
import { compareResults } from '../src/report/compare.js';
import { chartsOf, reportHtml } from '../src/report/html.js';
import { significant, spreadText } from '../src/report/text.js';
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
      ['decode-tok-s', 'tok/s'],
      ['decode-s', 's'],
    ]);
    expect(charts[0]!.series.map(({ name, metrics }) => [name, metrics.length])).toEqual([
      ['first', 1],
      ['second', 2],
    ]);
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
    expect((await readdir(charts)).sort()).toEqual(['decode-s.svg', 'decode-tok-s.svg']);
    expect(await readFile(join(charts, 'decode-s.svg'), 'utf8')).toMatch(/^<svg [\s\S]*<\/svg>$/);
  });

  it('draws pictures of charts: as large as they are, with the colour of bars on white, and with text', async () => {
    const file = join(dir, 'r.json');
    await writeResult(file, resultWith([speed(10, 20, 40)]));
    const { code } = await captured(main, ['report', file, '--png', dir, '--svg', dir]);
    expect(code).toBe(0);
    const [svg, png] = [
      await readFile(join(dir, 'decode-tok-s.svg'), 'utf8'),
      await readFile(join(dir, 'decode-tok-s.png')),
    ];
    const { width, height, pixels } = decodePng(png);
    expect([width, height]).toEqual(
      ['width', 'height'].map((side) => 2 * Number(new RegExp(`${side}="(\\d+)"`).exec(svg)![1])),
    );
    const at = (x: number, y: number) => [...pixels.subarray(4 * (y * width + x), 4 * (y * width + x) + 3)];
    expect(at(0, 0)).toEqual([255, 255, 255]);
    // The bar begins at the axis, 260 units from the left, in the middle between 62 units above and 40 below.
    expect(at(2 * 300, (2 * 62 + (height - 2 * 40)) / 2)).toEqual([0, 0x72, 0xb2]);
    // The title is written within the first 30 units.
    expect(pixels.subarray(0, 4 * 60 * width).some((value) => value < 128)).toBe(true);
  });

  it('has something to write, or says so', async () => {
    expect(await captured(main, ['report', 'x.json'])).toMatchObject({ code: 2 });
  });
});
