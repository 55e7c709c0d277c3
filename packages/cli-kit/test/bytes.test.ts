import { describe, expect, it } from 'vitest';
import { fileText, inUnit, memoryText, parseBytes, rateText } from '../src/bytes.js';

describe('parseBytes', () => {
  it.each([
    ['2GiB', 2_147_483_648],
    ['1.5 GB', 1_500_000_000],
    ['800m', 838_860_800],
    ['64kib', 65_536],
    ['1TB', 1e12],
    ['4096', 4096],
    ['12b', 12],
  ])('%s', (text, bytes) => expect(parseBytes(text, '--memory')).toBe(bytes));

  it.each([
    ['2', '2 without a unit is 2 bytes (write 2GiB or 2GB)'],
    ['1.5', '1.5 without a unit is 1 byte (write 1.5GiB or 1.5GB)'],
    ['4095', '4095 without a unit is 4,095 bytes (write 4095GiB or 4095GB)'],
  ])('not %s', (text, message) => {
    expect(() => parseBytes(text, '--memory')).toThrow(`--memory: ${message}`);
  });

  it.each(['', '0', '-1', '2 gallons', '1e3', 'GiB', '0.0001k', '9999999TiB', '1,5GB'])('not %j', (text) => {
    expect(() => parseBytes(text, '--memory')).toThrow(
      `--memory: ${JSON.stringify(text)} is not a number of bytes (write 2GiB, 1.5GB, 800MiB or a plain number)`,
    );
  });
});

describe('what is shown', () => {
  it.each([
    [2 ** 31, '2 GiB'],
    [1_503_238_553, '1.40 GiB'],
    [4_718_592, '4.50 MiB'],
    [2 ** 20 - 1, '1024 KiB'],
    [1023, '1023 B'],
    [0, '0 B'],
    [3 * 2 ** 50, '3 PiB'],
    [3 * 2 ** 60, '3072 PiB'],
  ])('%i bytes of memory', (bytes, text) => expect(memoryText(bytes)).toBe(text));

  it.each(['2GiB', '512MiB', '1500MB', '16MB', '12GB'])('memory that was given as %s, as it was', (typed) => {
    const shown = memoryText(parseBytes(typed, '--memory'));
    expect(parseBytes(shown, '--memory')).toBe(parseBytes(typed, '--memory'));
    expect(shown.replace('12000 MB', '12 GB')).toBe(typed.replace(/(\d)([A-Z])/, '$1 $2'));
  });

  it.each([
    [17_399_123_456, '17.40 GB'],
    [932_930, '932.93 kB'],
    [100e6, '100.00 MB'],
    [999, '999 B'],
  ])('%i bytes of a file', (bytes, text) => expect(fileText(bytes)).toBe(text));

  it('bandwidth', () => expect(rateText(21_349_000_000)).toBe('21.35 GB/s'));

  it.each([
    [0, 'MiB', '0.00'],
    [4_718_592, 'MiB', '4.50'],
    [2_660_000, 'MB', '2.66'],
    [1234, 'MB', '0.0012'],
  ] as const)('%i bytes in a column of %s', (bytes, unit, text) => expect(inUnit(bytes, unit)).toBe(text));
});
