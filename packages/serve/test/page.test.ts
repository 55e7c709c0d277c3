/** The page in a browser: what somebody with a keyboard does, and that nobody else is asked for anything. */
import { existsSync } from 'node:fs';
import { type Browser, chromium, type Page } from 'playwright-core';
import { afterAll, beforeAll, expect, it, onTestFinished } from 'vitest';
import { ONCE, serve } from './helpers.js';

const PATHS = [process.env.CFLOW_CHROMIUM, '/usr/bin/chromium', '/usr/bin/google-chrome'];
let browser: Browser;

beforeAll(async () => {
  const executablePath = PATHS.find((path) => path && existsSync(path));
  if (!executablePath) throw new Error('no Chromium: install one, or say where it is in CFLOW_CHROMIUM');
  browser = await chromium.launch({ executablePath, args: ['--no-sandbox', '--disable-gpu'] });
});
afterAll(() => browser?.close());

/** The page of a server; addresses that it asked for, and what went wrong in it. */
async function open(url: string, colorScheme: 'dark' | 'light' = 'light') {
  const context = await browser.newContext({ colorScheme });
  onTestFinished(() => context.close());
  const page = await context.newPage();
  const asked: string[] = [];
  const errors: string[] = [];
  page.on('request', (request) => asked.push(new URL(request.url()).origin));
  page.on('pageerror', (error) => errors.push(String(error)));
  await page.goto(url);
  return { page, asked, errors };
}

const answers = (page: Page) => page.locator('#log .assistant');
const STORY = ', there was a little girl named Lily.';

it('chats by keyboard, streams, and stops', async () => {
  const { url } = await serve();
  const { page, asked, errors } = await open(url);
  await page.locator('#model option[value="chat"]').waitFor({ state: 'attached' });
  await page.locator('#model').selectOption('chat');
  await page.locator('summary').click();
  await page.locator('#temperature').fill('0');
  await page.locator('#max_tokens').fill('20');
  await page.locator('#system').fill('A story.');
  await page.locator('#text').focus();
  await page.keyboard.type(ONCE);
  await page.keyboard.press('Enter');
  await page.locator('#send:enabled').waitFor();
  expect(await page.locator('#log .user').textContent()).toBe(ONCE);
  expect(await answers(page).textContent()).toContain('there was a little girl');
  // The focus is back where one types; Escape ends an answer, of which the beginning stays.
  await page.locator('#max_tokens').fill('');
  await page.locator('#text').focus();
  await page.keyboard.type('The dog');
  await page.keyboard.press('Enter');
  await page.waitForFunction(() => document.querySelectorAll('#log .assistant')[1]?.textContent !== '');
  await page.keyboard.press('Escape');
  await page.locator('#send:enabled').waitFor();
  expect(await page.evaluate(() => document.activeElement?.id)).toBe('text');
  expect(await answers(page).nth(1).textContent()).not.toBe('');
  await page.keyboard.press('Alt+n');
  expect(await page.locator('#log li').count()).toBe(0);
  expect(errors).toEqual([]);
  expect(new Set(asked)).toEqual(new Set([new URL(url).origin]));
});

it('goes on with a text where the model has no chat template', async () => {
  const { url } = await serve();
  const { page } = await open(url);
  await page.locator('#model option[value="stories"]').waitFor({ state: 'attached' });
  await page.locator('summary').click();
  await page.locator('#temperature').fill('0');
  await page.locator('#max_tokens').fill('12');
  await page.locator('#text').fill(ONCE);
  await page.locator('#send').click();
  await page.locator('#send:enabled').waitFor();
  expect(await answers(page).textContent()).toContain(STORY);
});

it('shows what goes wrong, and gives the message back', async () => {
  const { url } = await serve({ maxTokens: 5 });
  const { page } = await open(url);
  await page.locator('#model option[value="stories"]').waitFor({ state: 'attached' });
  await page.locator('#text').fill(ONCE);
  await page.locator('#text').press('Enter');
  await page.locator('#problem:visible').waitFor();
  expect(await page.locator('#problem').textContent()).toContain('--max-tokens');
  expect(await page.locator('#text').inputValue()).toBe(ONCE);
  expect(await page.locator('#log li').count()).toBe(0);
});

it('asks for a key where the server wants one', async () => {
  const { url } = await serve({ apiKeys: ['a-key'] });
  const { page } = await open(url);
  await page.locator('#problem:visible').waitFor();
  expect(await page.evaluate(() => document.activeElement?.id)).toBe('key');
  await page.keyboard.type('a-key');
  await page.keyboard.press('Tab');
  await page.locator('#model option[value="chat"]').waitFor({ state: 'attached' });
  expect(await page.locator('#problem').isVisible()).toBe(false);
});

it('shows text of a model as text, and figures while it writes', async () => {
  const { url } = await serve();
  const { page } = await open(url);
  await page.locator('#model option[value="stories"]').waitFor({ state: 'attached' });
  await page.locator('#text').fill('<img src=x onerror="document.title=1">');
  await page.locator('#text').press('Enter');
  await page.locator('#send:enabled').waitFor();
  expect(await page.locator('#log img').count()).toBe(0);
  expect(await page.title()).toBe('cflow');
  await page.waitForFunction(() => document.querySelector('#batch')?.textContent !== '–');
  expect(await page.locator('#rate').textContent()).toMatch(/^\d+\.\d$/);
});

it('is dark where the system is dark', async () => {
  const { url } = await serve();
  const paper = async (scheme: 'dark' | 'light') => {
    const { page } = await open(url, scheme);
    return page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  };
  expect(await paper('light')).toBe('rgb(253, 253, 252)');
  expect(await paper('dark')).toBe('rgb(23, 24, 26)');
});
