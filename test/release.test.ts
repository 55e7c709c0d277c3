/** What people install: the packed packages themselves, and their commands in an empty folder outside the repository. */
import { execFile } from 'node:child_process';
import { existsSync } from 'node:fs';
import { copyFile, mkdir, mkdtemp, readdir, readFile, rm, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { delimiter, join, relative } from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { checkPackage, createPackageFromTarballData } from '@arethetypeswrong/core';
import { publint } from 'publint';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { openRegistry, type Packed, packAll, type Registry } from './release/registry.js';

const ROOT = fileURLToPath(new URL('..', import.meta.url));
const FOLDERS = ['format', 'convert', 'runtime-native', 'inspect', 'bench', 'serve'] as const;
const VERSION = '0.1.0';
const MINUTES = 60_000;

let directory: string;
let packed: Map<string, Packed>;
let registry: Registry;
const pack = (folder: string) => packed.get(`@cflow/${folder}`)!;

beforeAll(async () => {
  directory = await mkdtemp(join(tmpdir(), 'cflow-release-'));
  await mkdir(join(directory, 'packed'));
  packed = await packAll(ROOT, join(directory, 'packed'));
  registry = await openRegistry(ROOT, packed.values());
}, 2 * MINUTES);
afterAll(async () => {
  await registry.close();
  await rm(directory, { recursive: true, force: true });
});

/** Paths below `folder`, in the form of `npm pack`. */
async function filesOf(folder: string): Promise<string[]> {
  const entries = await readdir(folder, { recursive: true, withFileTypes: true });
  return entries.filter((entry) => entry.isFile()).map(({ parentPath, name }) => join(parentPath, name));
}

/** The packages that a module's text imports, without Node's own. */
function importsOf(text: string): string[] {
  const specifiers = text.matchAll(/(?:from |import\(|import )'([^'.][^']*)'/g);
  return [...specifiers].map(([, name]) => name!).filter((name) => !/^(node:|#cli-kit\/)/.test(name));
}

describe.each(FOLDERS)('@cflow/%s as packed', (folder) => {
  const home = join(ROOT, 'packages', folder);

  it('has what its sources and its copy of the kit compile to, licence, README, commands, native sources, results and page, and nothing else', async () => {
    const sources = (await filesOf(join(home, 'src'))).map((path) =>
      path.slice(home.length + '/src/'.length),
    );
    // Finished research stays in the repository.
    const modules = sources.filter((path) => path.endsWith('.ts') && !path.startsWith('research/'));
    const kit = pack(folder).manifest.imports ? await filesOf(join(ROOT, 'packages/cli-kit/src')) : [];
    const copied = kit.map((path) => `cli-kit/${relative(join(ROOT, 'packages/cli-kit/src'), path)}`);
    const outputs = [...modules, ...copied].flatMap((path) =>
      ['.js', '.d.ts'].map((end) => `dist/${path.replace(/\.ts$/, end)}`),
    );
    const native = existsSync(join(home, 'native')) ? await filesOf(join(home, 'native')) : [];
    const compiled = native
      .map((path) => path.slice(home.length + 1))
      .filter((path) => !path.startsWith('native/test/'));
    const bin = Object.values((pack(folder).manifest.bin ?? {}) as Record<string, string>);
    const results = existsSync(join(home, 'results')) ? await filesOf(join(home, 'results')) : [];
    const page = existsSync(join(home, 'page')) ? await filesOf(join(home, 'page')) : [];
    const read = [...results, ...page].map((path) => path.slice(home.length + 1));
    const own = [...outputs, ...compiled, ...bin, ...read, ...(compiled.length > 0 ? ['install.mjs'] : [])];
    expect(pack(folder).files).toEqual([...own, 'LICENSE', 'README.md', 'package.json'].sort());
    expect(pack(folder).bytes.length).toBeLessThan(500_000);
  });

  it('says under which licence, from where, for which Node, and is of this version', async () => {
    const { manifest } = pack(folder);
    expect(manifest).toMatchObject({
      version: VERSION,
      license: 'MIT',
      type: 'module',
      engines: { node: '>=20.19' },
      repository: { type: 'git', directory: `packages/${folder}` },
      bugs: { url: expect.any(String) },
      homepage: expect.any(String),
      publishConfig: { access: 'public', provenance: true },
    });
    const licence = await readFile(join(ROOT, 'LICENSE'), 'utf8');
    expect(await readFile(join(home, 'LICENSE'), 'utf8')).toBe(licence);
    const versions = Object.entries((manifest.dependencies ?? {}) as Record<string, string>);
    expect(versions.filter(([, version]) => !/^\d+\.\d+\.\d+$/.test(version))).toEqual([]);
    expect(versions.filter(([name, version]) => packed.has(name) && version !== VERSION)).toEqual([]);
  });

  it('declares what it imports', async () => {
    const { files, manifest } = pack(folder);
    const modules = files.filter((path) => /\.(js|d\.ts)$/.test(path)).map((path) => join(home, path));
    const texts = await Promise.all(modules.map((path) => readFile(path, 'utf8')));
    const names = texts.flatMap(importsOf).map((name) => name.match(/^(@[^/]+\/)?[^/]+/)![0]);
    const known = [manifest.name, ...Object.keys(manifest.dependencies as object)];
    expect([...new Set(names)].filter((name) => !known.includes(name))).toEqual([]);
  });

  it('pleases publint, and its types resolve', async () => {
    const { bytes } = pack(folder);
    const tarball = new Uint8Array(bytes).buffer;
    const { messages } = await publint({ pack: { tarball }, strict: true });
    expect(messages).toEqual([]);
    const checked = await checkPackage(createPackageFromTarballData(new Uint8Array(bytes)));
    if (!checked.types) throw new Error('no types');
    // Modules alone: `require` gets them from Node 20.19 on, and older resolutions know no `exports`.
    const ofModules = checked.problems.filter(
      (problem) => !('resolutionKind' in problem) || /^(node16-esm|bundler)$/.test(problem.resolutionKind),
    );
    expect(ofModules.filter(({ kind }) => kind !== 'CJSResolvesToESM')).toEqual([]);
  });
});

it('the changelog tells of this version, and every package is of it', async () => {
  expect(await readFile(join(ROOT, 'CHANGELOG.md'), 'utf8')).toContain(`\n## ${VERSION}`);
  expect([...packed.values()].map(({ manifest }) => manifest.version)).toEqual(FOLDERS.map(() => VERSION));
  expect(JSON.parse(await readFile(join(ROOT, 'package.json'), 'utf8'))).toMatchObject({ version: VERSION });
});

/** The first of a name on PATH. */
const which = (name: string) =>
  process.env
    .PATH!.split(delimiter)
    .map((folder) => join(folder, name))
    .find(existsSync)!;

/** A PATH with Node and a shell: no make, no compiler. */
async function pathWithoutCompiler(): Promise<string> {
  const folder = join(directory, 'bin');
  await mkdir(folder);
  await symlink(process.execPath, join(folder, 'node'));
  await symlink(which('sh'), join(folder, 'sh'));
  return folder;
}

/** Whether the engine can be compiled here at all. */
const COMPILER = [process.env.CXX ?? 'g++', 'make'].every((name) => existsSync(name) || which(name));

const GREEDY = ['--prompt', 'Once upon a time', '--max-tokens', '12', '--temperature', '0'];
const STORY = ', there was a little girl named Lily. She loved to';

describe.each(['with a compiler', 'without'])('installed in an empty folder, %s', (tools) => {
  const compiles = tools === 'with a compiler' && COMPILER;
  const execute = promisify(execFile);
  let folder: string;
  let env: Record<string, string | undefined>;
  let log: string;

  /** One of the commands, as installed. */
  const command = (name: string, ...args: string[]) =>
    execute(join(folder, 'node_modules/.bin', name), args, { cwd: folder, env });

  beforeAll(async () => {
    folder = join(directory, tools);
    await mkdir(folder);
    // What the compiler makes of the sources at -O3 is what all other tests run; here it counts that it compiles.
    env =
      tools === 'with a compiler'
        ? { ...process.env, OPT: '-O0' }
        : { ...process.env, PATH: await pathWithoutCompiler() };
    delete env.CFLOW_SKIP_BUILD;
    await writeFile(join(folder, 'package.json'), '{ "private": true, "type": "module" }');
    const options = ['--registry', registry.url, '--cache', join(directory, 'cache'), '--foreground-scripts'];
    const names = FOLDERS.map((name) => `@cflow/${name}`);
    const args = ['install', ...names, ...options, '--no-audit', '--no-fund'];
    const { stdout, stderr } = await execute(which('npm'), args, { cwd: folder, env });
    log = stdout + stderr;
  }, 5 * MINUTES);

  it('gets everything from the packages and what they declare', async () => {
    expect(registry.missing).toEqual([]);
    if (compiles) expect(log).not.toMatch(/native engine not built|addon not built/);
    else {
      expect(log).toContain('cflow: native engine not built (make not found); the reference engine');
      expect(log).toContain('cflow-bench: addon not built (make not found)');
    }
    for (const addon of ['runtime-native/build/native/cflow.node', 'bench/build/native/cflow-bench.node'])
      expect(existsSync(join(folder, 'node_modules/@cflow', addon))).toBe(compiles);
  });

  it('converts, inspects, runs by the engine there is, and says which', async () => {
    const converted = await command(
      'cflow-convert',
      join(ROOT, 'models/stories-arch2_4'),
      'a.cflow',
      '--verify',
    );
    expect(converted.stdout).toMatch(/4,202,112 parameters, q4_0, 2\.66 MB\n.*, verified\n$/);
    const inspected = await command('cflow-inspect', 'a.cflow', '--json', '--verify');
    expect(JSON.parse(inspected.stdout)).toMatchObject({ verify: { ok: true } });
    const story = await command('cflow-run', 'a.cflow', ...GREEDY);
    expect(story.stdout).toBe(`${STORY}\n`);
    const fallback =
      'cflow-run: note: native engine not available (it has not been built); using the reference engine\n';
    expect(story.stderr).toBe(compiles ? '' : fallback);
    const synth = ['synth', 'b.cflow', '--format', 'cflow', '--layers', '1', '--geometry', 'llama-tiny'];
    expect((await command('cflow-bench', ...synth)).stdout).toContain('b.cflow: ');
    const scorecard = ['scorecard', '--quick', '--only', 'structure', '--json'];
    const scored = await command('cflow-bench', ...scorecard, '--model', 'a.cflow');
    expect(scored.stdout).toContain('committed 20');
    await expect(command('cflow-bench', ...scorecard)).rejects.toMatchObject({
      stderr: expect.stringContaining('no model given, and the bundled one exists only in the repository'),
    });
  });

  it('runs what the README of each library shows', async () => {
    await symlink(join(ROOT, 'models/stories-arch2_4'), join(folder, 'checkpoint'));
    await copyFile(join(folder, 'a.cflow'), join(folder, 'stories.cflow'));
    const printed: Record<string, string> = {};
    // The converter's first: it makes the model that others read.
    for (const name of ['convert', 'format', 'inspect', 'runtime-native', 'serve']) {
      const readme = await readFile(join(folder, 'node_modules/@cflow', name, 'README.md'), 'utf8');
      await writeFile(join(folder, 'example.mjs'), /```js\n(.*?)```/s.exec(readme)![1]!);
      const { stdout } = await execute(process.execPath, ['example.mjs'], { cwd: folder, env });
      printed[name] = stdout;
    }
    expect(printed).toEqual({
      convert: '',
      format: 'stories-arch2_4 6 145\n',
      inspect: expect.stringContaining('parameters: 4202112'),
      'runtime-native': expect.stringContaining(STORY),
      serve: expect.stringContaining(STORY),
    });
  });
});

it('its types compile in a project that has it installed', async () => {
  const folder = join(directory, 'without');
  const names = ['format', 'format/node', 'convert', 'runtime-native', 'inspect', 'bench', 'serve'];
  const lines = names.map((name, i) => `export * as m${i} from '@cflow/${name}';`);
  await writeFile(join(folder, 'use.ts'), lines.join('\n'));
  const tsc = join(ROOT, 'node_modules/typescript/bin/tsc');
  const types = ['--types', 'node', '--typeRoots', join(ROOT, 'node_modules/@types')];
  const options = ['--noEmit', '--strict', '--module', 'nodenext', '--lib', 'ES2023,ESNext.Disposable,DOM'];
  await promisify(execFile)(process.execPath, [tsc, 'use.ts', ...options, ...types], { cwd: folder }).catch(
    (error) => {
      expect(error.stdout).toBe('');
    },
  );
});
