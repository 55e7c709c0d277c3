/** The guide's table of fields is compared with the schemas: no field is forgotten, none is treated otherwise. */
import { readFile } from 'node:fs/promises';
import { expect, it } from 'vitest';
import { chatRequest } from '../src/schema/chat.js';
import { completionRequest } from '../src/schema/completions.js';

const GUIDE = new URL('../../../docs/guides/serving.md', import.meta.url);

/** Field to treatment, by the table of "Fields of a request". */
async function documented(): Promise<Map<string, string>> {
  const [, section] = /## Fields of a request\n(.*?)\n## /s.exec(await readFile(GUIDE, 'utf8'))!;
  const rows = [...section!.matchAll(/^\| (`.*?) \| (.*) \|$/gm)];
  return new Map(
    rows.flatMap(([, names, treatment]) =>
      [...names!.matchAll(/`(\w+)`/g)].map(([, name]) => [name!, treatment!]),
    ),
  );
}

it('the guide lists every field of the requests, and no other', async () => {
  const fields = new Set([...Object.keys(chatRequest.shape), ...Object.keys(completionRequest.shape)]);
  expect([...(await documented()).keys()].sort()).toEqual([...fields].sort());
});

it('the guide says ignored and refused where the schemas do', async () => {
  const treatments = await documented();
  for (const [name, schema] of Object.entries({ ...chatRequest.shape, ...completionRequest.shape })) {
    const kind = /^(Ignored|Refused)/.exec(schema.description ?? '')?.[0].toLowerCase() ?? 'used';
    const told = /^(ignored|refused)/.exec(treatments.get(name)!)?.[0] ?? 'used';
    expect([name, told]).toEqual([name, kind]);
  }
});
