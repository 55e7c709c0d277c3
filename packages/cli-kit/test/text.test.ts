import { expect, it } from 'vitest';
import { count, plural, table } from '../src/text.js';

it('groups thousands', () => expect(count(1234567.5)).toBe('1,234,567.5'));

it.each([
  [0, '0 threads'],
  [1, '1 thread'],
  [1024, '1,024 threads'],
])('%i threads', (n, text) => expect(plural(n, 'thread')).toBe(text));

it('plurals that are not the noun with an s', () =>
  expect([1, 2].map((n) => plural(n, 'geometry', 'geometries'))).toEqual(['1 geometry', '2 geometries']));

it('aligns columns by their headings, by characters', () =>
  expect(
    table(
      ['name', '>MB', 'why'],
      [
        ['é𝟚', '1.00', ''],
        ['attention', '12.50', 'large'],
      ],
    ),
  ).toEqual(['name          MB  why', 'é𝟚          1.00', 'attention  12.50  large']));
