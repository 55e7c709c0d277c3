/** The documents: what they link to is there, and the code that they show is the code that is tested. */
import { execFileSync } from 'node:child_process';
import { existsSync, readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { describe, expect, it } from 'vitest';
import { FAMILIES } from '../packages/convert/src/families/index.js';

const ROOT = fileURLToPath(new URL('..', import.meta.url));
const text = (path: string) => readFileSync(join(ROOT, path), 'utf8');
const tracked = execFileSync('git', ['ls-files', '*.md'], { cwd: ROOT, encoding: 'utf8' }).trim().split('\n');
const DOCUMENTS = tracked.filter((path) => !path.includes('/golden/') && existsSync(join(ROOT, path)));

/** As headings become anchors: lower case, words joined by hyphens. */
const anchors = (document: string) =>
  [...document.matchAll(/^#+ (.+)$/gm)].map(([, heading]) =>
    heading!
      .toLowerCase()
      .replace(/[^\p{L}\p{N} _-]/gu, '')
      .replaceAll(' ', '-'),
  );

it('there are documents', () => expect(DOCUMENTS.length).toBeGreaterThan(10));

describe.each(DOCUMENTS)('%s', (path) => {
  it('links to files and headings that are there', () => {
    const links = [...text(path).matchAll(/\]\((?!https?:)([^)\s]+)\)/g)].map(([, link]) => link!);
    const broken = links.filter((link) => {
      const [file, anchor] = link.split('#');
      const target = file ? join(ROOT, dirname(path), file) : join(ROOT, path);
      return !existsSync(target) || (anchor && !anchors(readFileSync(target, 'utf8')).includes(anchor));
    });
    expect(broken).toEqual([]);
  });

  it('names files of this repository that are there', () => {
    const names = [...text(path).matchAll(/`((?:packages|docs|test|scripts|examples)\/[\w./-]+\.\w+)`/g)];
    expect(names.map(([, name]) => name!).filter((name) => !existsSync(join(ROOT, name)))).toEqual([]);
  });
});

describe('docs/adding-a-model.md', () => {
  const files = ['quill.ts', 'quill.test.ts'].map((name) => text(`test/adding-a-model/${name}`));

  it('shows the example that is tested, as it is', () => {
    const shown = [...text('docs/adding-a-model.md').matchAll(/^```ts\n(.*?)^```$/gms)];
    expect(shown.map(([, code]) => code)).toEqual(files);
  });

  it('is true that the example has less than sixty lines of data and test', () => {
    const lines = files.flatMap((file) => file.split('\n'));
    const counted = lines.filter((line) => !/^(import .*|\s*|\s*(\/\/|\/\*\*).*)$/.test(line));
    expect(counted.length).toBeLessThan(60);
  });
});

it('the README names every family that is supported', () => {
  const named = new Set(text('README.md').match(/[\w]+/g));
  const families = Object.keys(FAMILIES).map((modelType) => modelType.replace(/_text$/, ''));
  expect(families.filter((family) => !named.has(family))).toEqual([]);
});
