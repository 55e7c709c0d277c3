import { readFileSync } from 'node:fs';
import { describe, expect, it } from 'vitest';
// @ts-expect-error a script without types
import { DOCUMENT, renew, sections } from '../../../scripts/format-doc.mjs';
import * as format from '../src/index.js';

const document = readFileSync(DOCUMENT, 'utf8');

describe('docs/format.md', () => {
  it('has the tables of the code; `npm run docs:format` renews them', () => {
    expect(document).toBe(renew(document, sections(format)));
  });

  it('notices drift: another offset, a missing part, a surplus part', () => {
    const parts = sections(format);
    expect(renew(document.replace('| 80 | u8 | `dense_delay` |', '| 81 | u8 | `dense_delay` |'), parts)).toBe(
      document,
    );
    expect(() => renew(document, { ...parts, extra: '' })).toThrow('the document lacks extra');
    const { limits: _, ...fewer } = parts;
    expect(() => renew(document, fewer)).toThrow('unknown part limits');
  });

  it('names every error code of the format and every struct', () => {
    for (const name of [...format.ERROR_CODES, ...format.STRUCTS.map((s) => s.name)]) {
      expect(document).toContain(name);
    }
  });
});
