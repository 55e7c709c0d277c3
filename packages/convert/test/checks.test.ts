/** Callers from JavaScript: what is no request is refused by name, before anything is read or written. */
import { expect, it } from 'vitest';
import { type ConvertRequest, convert, dryRun } from '../src/index.js';

const REQUEST = { source: 'nowhere', output: 'out.cflow' };

it.each([
  ['source', 5],
  ['source', undefined],
  ['output', null],
  ['threads', -1],
  ['threads', 1.5],
  ['threads', 257],
  ['dtype', 'q5_1'],
  ['dtype', '__proto__'],
  ['container', 'gguf'],
  ['overwrite', 'yes'],
  ['signal', {}],
  ['onProgress', 1],
])('%s: %j', async (field, value) => {
  const request = { ...REQUEST, [field]: value } as ConvertRequest;
  const refusal = { code: 'USAGE', details: { field, value } };
  await expect(convert(request)).rejects.toMatchObject(refusal);
  // A dry run needs no source.
  if (value !== undefined) await expect(dryRun(request)).rejects.toMatchObject(refusal);
});

it('no request at all', async () => {
  await expect(convert(undefined as unknown as ConvertRequest)).rejects.toMatchObject({ code: 'USAGE' });
});
