import { existsSync } from 'node:fs';
import { type Browser, chromium } from 'playwright-core';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { reportHtml } from '../src/report/page.js';
import { metric } from '../src/runner/result.js';
import { resultWith } from './results.js';

const PATHS = [process.env.CFLOW_CHROMIUM, '/usr/bin/chromium', '/usr/bin/google-chrome'];

let browser: Browser;
beforeAll(async () => {
  const executablePath = PATHS.find((path) => path && existsSync(path));
  if (!executablePath) throw new Error('no Chromium: install one, or say where it is in CFLOW_CHROMIUM');
  browser = await chromium.launch({ executablePath, args: ['--no-sandbox', '--disable-gpu'] });
});
afterAll(() => browser.close());

async function open(html: string) {
  const page = await browser.newPage({ viewport: { width: 1000, height: 800 } });
  const asked: string[] = [];
  page.on('request', (request) => asked.push(request.url()));
  page.on('pageerror', (error) => asked.push(error.message));
  await page.setContent(html, { waitUntil: 'load' });
  return { page, asked };
}

it('shows bars as long as their medians, whiskers from minimum to maximum, and asks for nothing', async () => {
  const metrics = [metric('short', 'tok/s', 'higher', [10, 20, 40]), metric('long', 'tok/s', 'higher', [40])];
  const { page, asked } = await open(reportHtml([{ name: 'only', result: resultWith(metrics) }]));
  const widths = await page
    .locator('svg path[fill="#0072b2"]')
    .evaluateAll((paths) => paths.map((path) => (path as unknown as SVGGraphicsElement).getBBox().width));
  expect(widths.length).toBe(2);
  expect(widths[1]! / widths[0]!).toBeCloseTo(2, 2);
  const lines = await page
    .locator('svg path[stroke="#222222"]')
    .evaluateAll((paths) => paths.map((path) => (path as unknown as SVGGraphicsElement).getBBox().width));
  // One whisker and its two ends; 10 to 40 is one and a half times the bar of 20. What has one run has none.
  expect(lines.length).toBe(3);
  expect(Math.max(...lines) / widths[0]!).toBeCloseTo(1.5, 2);
  expect(await page.locator('h2').allTextContents()).toEqual(['only']);
  expect(asked).toEqual([]);
  await page.close();
});

it('shows what names say and runs none of it', async () => {
  const name = '<img src=x onerror="document.title=1">';
  const result = resultWith([metric(name, 'tok/s', 'higher', [1])]);
  const { page, asked } = await open(reportHtml([{ name: 'x', result }]));
  expect(await page.locator('td', { hasText: '<img' }).count()).toBe(1);
  expect([await page.title(), asked]).toEqual(['cflow-bench: x', []]);
  await page.close();
});

it('draws bars of several results from the floor of a logarithmic axis, and no place for what one lacks', async () => {
  const runs = (name: string, value: number) => metric(`${name}: decode`, 'tok/s', 'higher', [value]);
  const { page } = await open(
    reportHtml([
      { name: 'first', result: resultWith([runs('a', 0.1), runs('b', 10)]) },
      { name: 'second', result: resultWith([runs('b', 1), runs('c', 0.1)]) },
    ]),
  );
  const boxes = (color: string) =>
    page.locator(`svg path[fill="${color}"]`).evaluateAll((paths) =>
      paths
        .map((path) => (path as unknown as SVGGraphicsElement).getBBox())
        // Bars; the legend has swatches of the same colour.
        .filter(({ y }) => y > 62)
        .map(({ x, y, width }) => ({ x, y, width })),
    );
  const [[a, b], [second, c]] = [await boxes('#0072b2'), await boxes('#e69f00')];
  // From 0.01: one decade, three, two, one.
  expect([a!, b!, second!, c!].map(({ width }) => width / a!.width)).toEqual(
    [1, 3, 2, 1].map((decades) => expect.closeTo(decades, 2)),
  );
  expect(new Set([a!, b!, second!, c!].map(({ x }) => Math.round(x))).size).toBe(1);
  // Slots of 22: a, space, b twice, space, c.
  const slots = [a!, b!, second!, c!].map(({ y }) => Math.round((y - a!.y) / 22));
  expect(slots).toEqual([0, 2, 3, 5]);
  const label = await page.locator('svg text', { hasText: /^b$/ }).boundingBox();
  const svg = await page.locator('svg').boundingBox();
  // The name is at the first of its bars.
  const middle = (label!.y - svg!.y + label!.height / 2) * (900 / svg!.width);
  expect(Math.abs(middle - (b!.y + 9))).toBeLessThan(6);
  await page.close();
});
