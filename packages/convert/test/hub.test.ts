import { chmod, lstat, mkdir, readdir, readFile, readlink, stat, unlink, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { directory, safetensors } from '@cflow/test-kit/checkpoint';
import { describe, expect, it, vi } from 'vitest';
import { convert } from '../src/convert.js';
import { openSource } from '../src/hub/open.js';
import { listing, llamaConfig, llamaFiles, llamaTensors, RAGGED, run, start } from './cli-fixture.js';
import { COMMIT, hubWith, type Place, REPO, tree } from './hub-fixture.js';
import { sha256 } from './hub-server.js';
import { bf16Files, LARGER, pause, sameBytes } from './resume-fixture.js';

const SOURCE = `hf:${REPO}`;
/** Repetitions come at once. */
const QUICK = { firstWaitMs: 1, threads: 1 };

function toFile({ out }: Place, name = 'm.cflow') {
  return { ...QUICK, source: SOURCE, output: join(out, name) };
}

function sharded(change: (weightMap: Record<string, string>) => void = () => undefined) {
  const entries = Object.entries(llamaTensors(RAGGED));
  const shard = (i: number) => `model-0000${i + 1}-of-00002.safetensors`;
  const weight_map = Object.fromEntries(entries.map(([name], i) => [name, shard(i % 2)]));
  change(weight_map);
  const part = (i: number) => safetensors(Object.fromEntries(entries.filter((_, index) => index % 2 === i)));
  return {
    'config.json': llamaConfig(RAGGED),
    'model.safetensors.index.json': { metadata: {}, weight_map },
    [shard(0)]: part(0),
    [shard(1)]: part(1),
  };
}

describe('a repository', () => {
  it('is fetched into the layout that all libraries of the Hub share, and only once', async () => {
    const place = await hubWith({ ...llamaFiles(), 'README.md': '# Tiny', 'pytorch_model.bin': 'pickle' });
    await convert(toFile(place));
    const model = place.hub.repos[REPO]!.files['model.safetensors']!;
    const link = place.cached('snapshots', COMMIT, 'model.safetensors');
    expect(await readlink(link)).toBe(join('..', '..', 'blobs', sha256(model)));
    expect(await readFile(link)).toEqual(Buffer.from(model));
    expect(await readFile(place.cached('refs', 'main'), 'utf8')).toBe(COMMIT);
    expect((await listing(place.cached('snapshots', COMMIT))).sort()).toEqual([
      'config.json',
      'model.safetensors',
    ]);
    expect(place.hub.fetched('README.md')).toEqual([]);

    place.hub.seen.length = 0;
    await convert(toFile(place, 'again.cflow'));
    expect(place.hub.seen.map(({ path }) => path.split('/').at(-2))).toEqual(['revision', 'tree']);
    expect(await sameBytes(join(place.out, 'm.cflow'), join(place.out, 'again.cflow'))).toBe(true);
  });

  it('gives the same file past the cache, which then stays empty, and as its directory does up to the name', async () => {
    const place = await hubWith(sharded());
    await convert(toFile(place));
    const other = await hubWith(sharded());
    const output = join(place.out, 'streamed.cflow');
    await convert({ ...QUICK, source: SOURCE, output, cache: false, verify: true });
    expect(await sameBytes(output, join(place.out, 'm.cflow'))).toBe(true);
    await expect(stat(other.home)).rejects.toThrow('ENOENT');
    const text = (await readFile(output)).toString('latin1');
    expect(text).toContain(`"name":"${REPO}@${COMMIT}"`);
    for (const name of Object.keys(sharded())) {
      expect(text, name).toContain(sha256(other.hub.repos[REPO]!.files[name]!));
    }
  });

  it('is looked at by a dry run without being fetched', async () => {
    const place = await hubWith(bf16Files({ ...RAGGED, vocab: 10_000 }));
    const { code, stdout } = await run(SOURCE, '--dry-run', '--json');
    expect(code).toBe(0);
    expect(JSON.parse(stdout)).toMatchObject({ parameters: 823_480, weightsPresent: true });
    await expect(stat(place.home)).rejects.toThrow('ENOENT');
    expect(place.hub.fetched('model.safetensors').map(({ range }) => range)).toEqual(
      Array(2).fill('bytes=0-131071'),
    );
  });

  it('is checked before anything large is fetched: an index that promises what its shard lacks', async () => {
    const place = await hubWith(
      sharded((map) => {
        map['model.norm.weight'] = 'model-00001-of-00002.safetensors';
        map['lm_head.weight'] = 'model-00001-of-00002.safetensors';
        map['model.embed_tokens.weight'] = 'model-00002-of-00002.safetensors';
      }),
    );
    await expect(convert(toFile(place))).rejects.toMatchObject({
      code: 'TENSOR_MISMATCH',
      message: expect.stringMatching(
        /2 places: model\.embed_tokens\.weight is not in .*; model\.norm\.weight is not in/,
      ),
    });
    expect(await tree(place.cached('snapshots'))).toEqual(['config.json', 'model.safetensors.index.json']);
  });

  it.each([99_994, 99_997, 100_000])('a header of %d bytes whose first range comes short', async (length) => {
    const tensors = llamaTensors(RAGGED);
    const plain = safetensors(tensors);
    const header = new DataView(plain.buffer, plain.byteOffset).getBigUint64(0, true);
    const text = new TextDecoder().decode(plain.subarray(8, 8 + Number(header)));
    const long = Buffer.from(text.padEnd(length));
    const size = Buffer.alloc(8);
    size.writeBigUInt64LE(BigInt(length));
    const file = Buffer.concat([size, long, plain.subarray(8 + Number(header))]);
    const place = await hubWith({ ...llamaFiles(), 'model.safetensors': file });
    // Of 131,072 bytes so many are missing that the header ends just behind what came.
    const short = 131_072 - length;
    place.hub.fault = ({ host, range }) =>
      host === 'content' && range === 'bytes=0-131071' ? { short } : undefined;
    await convert({ ...toFile(place), cache: false });
    const dir = await directory(llamaFiles());
    await convert({ threads: 1, source: dir, output: join(place.out, 'local.cflow') });
    const weights = (await readFile(join(place.out, 'local.cflow'))).subarray(-50_000);
    expect((await readFile(join(place.out, 'm.cflow'))).subarray(-50_000).equals(weights)).toBe(true);
  });

  it('with its files over several pages of the listing', async () => {
    const place = await hubWith(sharded());
    place.hub.pageSize = 1;
    await convert(toFile(place));
    expect(await tree(place.cached('snapshots'))).toEqual(Object.keys(sharded()).sort());
  });

  it('by branch, tag, pull request or commit', async () => {
    for (const revision of ['feature/x', 'v1.0', 'refs/pr/1', COMMIT]) {
      const place = await hubWith(llamaFiles(), { revisions: ['feature/x', 'v1.0', 'refs/pr/1'] });
      await convert({ ...toFile(place), source: `${SOURCE}@${revision}` });
      const ref = await readFile(place.cached('refs', ...revision.split('/')), 'utf8').catch(() => undefined);
      expect({ revision, ref }).toEqual({ revision, ref: revision === COMMIT ? undefined : COMMIT });
    }
  });
});

describe('the cache', () => {
  async function filled(): Promise<Place> {
    const place = await hubWith();
    await convert(toFile(place));
    return place;
  }

  it('is enough offline: no request at all', async () => {
    const place = await filled();
    place.hub.seen.length = 0;
    vi.stubEnv('HF_HUB_OFFLINE', 'yes');
    await convert(toFile(place, 'offline.cflow'));
    expect(place.hub.seen).toEqual([]);
    expect(await sameBytes(join(place.out, 'm.cflow'), join(place.out, 'offline.cflow'))).toBe(true);
    const unknown = { ...toFile(place, 'other.cflow'), source: 'hf:acme/other' };
    await expect(convert(unknown)).rejects.toMatchObject({
      code: 'NOT_READABLE',
      message: expect.stringContaining('HF_HUB_OFFLINE'),
    });
  });

  it('may be read-only, with the lock of another program in it', async () => {
    const place = await filled();
    await mkdir(join(place.home, 'hub', '.locks', 'models--acme--tiny'), { recursive: true });
    await writeFile(join(place.home, 'hub', '.locks', 'models--acme--tiny', 'x.lock'), '');
    const dirs = (await readdir(place.home, { recursive: true, withFileTypes: true })).filter((e) =>
      e.isDirectory(),
    );
    const paths = dirs.map((e) => join(e.parentPath, e.name));
    for (const path of paths) await chmod(path, 0o555);
    const times = async () => Promise.all(paths.map(async (path) => (await lstat(path)).ctimeMs));
    const before = await times();
    await convert(toFile(place, 'again.cflow'));
    // Permissions do not bind every user who may run this test; unchanged directories do.
    expect(await times()).toEqual(before);
    for (const path of paths) await chmod(path, 0o755);
  });

  it('that was damaged is found out at the end at the latest', async () => {
    const place = await filled();
    const path = place.cached('snapshots', COMMIT, 'model.safetensors');
    const bytes = await readFile(path);
    bytes[bytes.length - 1]! ^= 1;
    await writeFile(path, bytes);
    await expect(convert(toFile(place, 'b.cflow'))).rejects.toMatchObject({
      code: 'VERIFY_FAILED',
      message: expect.stringMatching(/SHA-256 is [0-9a-f]{64}, the Hub says .*delete it/),
    });
    await expect(stat(join(place.out, 'b.cflow'))).rejects.toThrow('ENOENT');
  });

  it('with a link that points to nothing gets the file again', async () => {
    const place = await filled();
    const { files } = place.hub.repos[REPO]!;
    await unlink(place.cached('blobs', sha256(files['model.safetensors']!)));
    await convert(toFile(place, 'b.cflow'));
    expect(await sameBytes(join(place.out, 'm.cflow'), join(place.out, 'b.cflow'))).toBe(true);
  });

  it('that cannot be written says what to do', async () => {
    const place = await hubWith();
    await writeFile(join(place.out, 'file'), '');
    vi.stubEnv('HF_HUB_CACHE', join(place.out, 'file'));
    await expect(convert(toFile(place))).rejects.toMatchObject({
      code: 'WRITE_FAILED',
      message: expect.stringMatching(/cannot write to the cache: .*--no-cache/),
    });
    await convert({ ...toFile(place), cache: false });
  });
});

describe('a download that ends too soon', () => {
  it('goes on where it stopped, in the same process and in the next', async () => {
    const place = await hubWith();
    const { size } = { size: place.hub.repos[REPO]!.files['model.safetensors']!.length };
    let cuts = 0;
    place.hub.fault = ({ host, range }) => {
      if (host !== 'content' || range === 'bytes=0-131071') return undefined;
      return cuts++ < 1 ? { cutAfter: 50_000 } : { status: 503 };
    };
    await expect(convert(toFile(place))).rejects.toMatchObject({
      code: 'NOT_READABLE',
      message: expect.stringMatching(/model\.safetensors: the server answers 503.*7 times/),
    });
    const [partial] = (await listing(place.cached('blobs'))).filter((name) => name.includes('incomplete'));
    const got = (await stat(place.cached('blobs', partial!))).size;
    expect(got).toBeGreaterThan(0);
    place.hub.fault = () => undefined;
    place.hub.seen.length = 0;
    await convert(toFile(place));
    const ranges = place.hub.seen.filter(({ host }) => host === 'content').map(({ range }) => range);
    expect(ranges).toEqual(['bytes=0-131071', `bytes=${got}-${size - 1}`]);
    expect((await listing(place.cached('blobs'))).some((name) => name.includes('incomplete'))).toBe(false);
  });

  it('because its process is killed, three times, ends in the same bytes', async () => {
    const files = bf16Files(LARGER, 2);
    const place = await hubWith(files);
    /** Three of them are less than the smaller file. */
    const piece = 5 * 2 ** 20;
    place.hub.fault = ({ host, range }) =>
      host === 'content' && range !== 'bytes=0-131071' ? { stallAfter: piece } : undefined;
    const output = join(place.out, 'm.cflow');
    /** Bytes of what is being fetched. */
    const unfinished = async () => {
      const names = await listing(place.cached('blobs')).catch(() => []);
      const partial = names.filter((name) => name.endsWith('incomplete'));
      // A small one may just have got its own name.
      const size = (name: string) => stat(place.cached('blobs', name)).catch(() => ({ size: 0 }));
      const sizes = (await Promise.all(partial.map(size))).map((stats) => stats.size);
      return sizes.filter((bytes) => bytes > 0);
    };
    for (let i = 1; i <= 3; i++) {
      const { child, outcome } = start(SOURCE, output, '--resume');
      const all = [i * piece, i * piece];
      while (child.exitCode === null && (await unfinished()).join() !== all.join()) await pause(5);
      child.kill('SIGKILL');
      await outcome;
      expect(await unfinished()).toEqual(all);
      await expect(stat(output)).rejects.toThrow('ENOENT');
    }
    place.hub.fault = () => undefined;
    expect((await run(SOURCE, output, '--resume')).code).toBe(0);
    for (const [name, bytes] of Object.entries(place.hub.repos[REPO]!.files)) {
      expect((await readFile(place.cached('snapshots', COMMIT, name))).equals(bytes), name).toBe(true);
    }
    expect(await unfinished()).toEqual([]);
    expect((await run(SOURCE, join(place.out, 'whole.cflow'))).code).toBe(0);
    expect(await sameBytes(output, join(place.out, 'whole.cflow'))).toBe(true);
  });

  it('begins anew if what it had is bad', async () => {
    const place = await hubWith();
    const { files } = place.hub.repos[REPO]!;
    const blob = place.cached('blobs', sha256(files['model.safetensors']!));
    await mkdir(place.cached('blobs'), { recursive: true });
    await writeFile(`${blob}.cflow-incomplete`, new Uint8Array(1000));
    await convert(toFile(place));
    expect(await readFile(blob)).toEqual(Buffer.from(files['model.safetensors']!));
  });

  it('past the cache leaves an output that --resume goes on with', async () => {
    const place = await hubWith(bf16Files(LARGER, 2));
    const request = { ...toFile(place), dtype: 'q8_0', cache: false } as const;
    let ranges = 0;
    place.hub.fault = ({ host }) => (host === 'content' && ranges++ > 34 ? { status: 500 } : undefined);
    await expect(convert(request)).rejects.toMatchObject({
      code: 'NOT_READABLE',
      message: expect.stringMatching(/answers 500.*MB are kept .*--resume/),
    });
    place.hub.fault = () => undefined;
    const { notes } = await convert({ ...request, resume: true });
    expect(notes).toContainEqual(expect.stringContaining('were already written'));
    const dir = await directory(bf16Files(LARGER, 2));
    await convert({ threads: 1, dtype: 'q8_0', source: dir, output: join(place.out, 'local.cflow') });
    const tail = async (name: string) => (await readFile(join(place.out, name))).subarray(-72_000_000);
    expect((await tail('m.cflow')).equals(await tail('local.cflow'))).toBe(true);
    // Each request is for megabytes, not for a stripe.
    expect(place.hub.seen.length).toBeLessThan(120);
  });
});

it('--no-cache is for repositories: exit 2', async () => {
  const dir = await directory(llamaFiles());
  const { code, stderr } = await run(dir, join(dir, 'm.cflow'), '--no-cache');
  expect(code).toBe(2);
  expect(stderr).toContain('hf:org/name');
  await expect(openSource({ source: 'hf:no/way/here', model: 'auto', cache: true })).rejects.toMatchObject({
    code: 'USAGE',
  });
});
