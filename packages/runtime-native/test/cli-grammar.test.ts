/** --json-schema and --grammar: what they read, and what they say about what is wrong. */
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { captured } from '@cflow/test-kit/captured';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { main } from '../src/cli.js';
import { CHARACTERS } from './character-tokenizer.js';
import { goldenFile } from './model-file.js';

let directory: string;
let model: string;
const path = (name: string) => join(directory, name);
beforeAll(async () => {
  directory = await mkdtemp(join(tmpdir(), 'cflow-cli-grammar-'));
  model = path('text.cflow');
  const tokenizer = {
    tokenizerJson: JSON.stringify(CHARACTERS),
    tokenizerConfigJson: JSON.stringify({ eos_token: '</s>' }),
    vocabSize: 97,
  };
  await writeFile(model, (await goldenFile('arch4', { tokenizer })).bytes);
  await writeFile(path('schema.json'), '{"enum": [1, 2]}');
  await writeFile(path('broken.json'), '{"enum": [1, 2}');
  await writeFile(path('words.gbnf'), 'root ::= "a" [bc]{2,3}\n');
});
afterAll(() => rm(directory, { recursive: true }));

const run = (...args: string[]) => captured(main, [model, '--prompt', 'a', '--max-tokens', '20', ...args]);

it.each([
  ['a schema in a file', ['--json-schema', 'schema.json'], /^\s*[12]\n$/],
  ['a schema as it stands', ['--json-schema', '{"const": 42}'], /^\s*42\n$/],
  ['EBNF', ['--grammar', 'words.gbnf'], /^a[bc]{2,3}\n$/],
])('%s', async (_, args, wanted) => {
  const named = args.map((arg) => (/\.(json|gbnf)$/.test(arg) ? path(arg) : arg));
  expect(await run(...named)).toEqual({ code: 0, out: expect.stringMatching(wanted as RegExp), err: '' });
});

it.each([
  [2, ['--json-schema', '{"a": }'], /^cflow-run: error: --json-schema: not JSON: /],
  [2, ['--json-schema', 'broken.json'], /^cflow-run: error: .*broken.json: --json-schema: not JSON: /],
  [3, ['--json-schema', 'missing.json'], /missing.json: /],
  [
    8,
    ['--json-schema', '{"not": {}}'],
    /^cflow-run: error: #: JSON schema: the keyword "not" is not supported/,
  ],
  [2, ['--grammar', 'schema.json'], /^cflow-run: error: --grammar: line 1: unexpected/],
  [
    2,
    ['--grammar', 'words.gbnf', '--json-schema', '{}'],
    /^cflow-run: error: --grammar: an answer follows one grammar/,
  ],
])('exit %i for %j', async (code, args, wanted) => {
  const named = args.map((arg) => (/\.(json|gbnf)$/.test(arg) ? path(arg) : arg));
  expect(await run(...named)).toEqual({ code, out: '', err: expect.stringMatching(wanted) });
});
