import { expect, it } from 'vitest';
// @ts-expect-error a script without types
import { documents } from '../../../scripts/plan-doc.mjs';
import * as format from '../src/index.js';

interface Document {
  readonly path: string;
  readonly text: string;
  readonly renewed: string;
}

it('the documents have the barriers and steps of the code; `npm run docs:plan` renews them', () => {
  const all = documents(format) as Document[];
  expect(all.map(({ path }) => path)).toEqual(['docs/architecture.md', 'docs/adding-a-step.md']);
  for (const { text, renewed } of all) expect(text).toBe(renewed);
});

it('notices another figure', () => {
  const barriersPerToken = () => 49;
  const [architecture] = documents({ ...format, barriersPerToken }) as Document[];
  expect(architecture!.renewed).not.toBe(architecture!.text);
});
