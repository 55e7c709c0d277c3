/** Versions stand in package.json alone. */
import { readdirSync, readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { captured } from '@cflow/test-kit/captured';
import { expect, it } from 'vitest';
import { main as convert } from '../../convert/src/cli.js';
import { CONVERTER_VERSION } from '../../convert/src/index.js';
import { main as inspect } from '../../inspect/src/cli.js';
import { main as run } from '../../runtime-native/src/cli.js';
import { main as bench } from '../src/cli.js';

const folder = (name: string) => fileURLToPath(new URL(`../../${name}/`, import.meta.url));
const versionOf = (name: string) =>
  (JSON.parse(readFileSync(`${folder(name)}package.json`, 'utf8')) as { version: string }).version;

it.each([
  ['convert', convert],
  ['runtime-native', run],
  ['bench', bench],
  ['inspect', (argv: string[]) => inspect(argv)],
])('the command of %s has the version of its package', async (name, main) => {
  expect(await captured(main, ['--version'])).toMatchObject({ code: 0, out: `${versionOf(name)}\n` });
});

it('files name the version of the converter', () => {
  expect(CONVERTER_VERSION).toBe(versionOf('convert'));
});

it('no source repeats it', () => {
  for (const name of ['format', 'convert', 'runtime-native', 'inspect', 'bench']) {
    const sources = readdirSync(`${folder(name)}src`, { recursive: true, encoding: 'utf8' });
    const repeating = sources.filter(
      (file) =>
        file.endsWith('.ts') &&
        readFileSync(`${folder(name)}src/${file}`, 'utf8').includes(`'${versionOf(name)}'`),
    );
    expect(repeating).toEqual([]);
  }
});
