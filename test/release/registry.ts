/**
 * What a release is installed from: our packed packages, and what they depend on as `npm ci` has it, behind the part of
 * a registry's protocol that `npm install` uses. Nothing else is reached.
 */
import { execFile } from 'node:child_process';
import { createHash } from 'node:crypto';
import { existsSync } from 'node:fs';
import { readFile } from 'node:fs/promises';
import { createServer, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { basename, dirname, join } from 'node:path';
import { promisify } from 'node:util';

const run = promisify(execFile);

export interface Manifest {
  readonly name: string;
  readonly version: string;
  readonly [field: string]: unknown;
}

interface Release {
  readonly manifest: Manifest;
  readonly integrity?: string;
  readonly tarball: () => Promise<Buffer>;
}

/** A package of ours as `npm pack` wrote it. */
export interface Packed {
  readonly manifest: Manifest;
  readonly bytes: Buffer;
  /** Paths inside the package, sorted. */
  readonly files: readonly string[];
}

/** Packs every workspace of `root` that is not private into `into`, as `npm publish` would; by name. */
export async function packAll(root: string, into: string): Promise<Map<string, Packed>> {
  const { stdout } = await run('npm', ['pack', '--workspaces', '--json', '--pack-destination', into], {
    cwd: root,
    maxBuffer: 1 << 26,
  });
  const listed: unknown = JSON.parse(stdout.slice(stdout.search(/^[[{]/m)));
  const entries = Object.values(listed as Record<string, { filename: string; files: { path: string }[] }>);
  const packed = entries.map(async ({ filename, files }): Promise<Packed> => {
    const path = join(into, filename);
    const { stdout: json } = await run('tar', ['-xOzf', path, 'package/package.json']);
    const paths = files.map((file) => file.path).sort();
    return { manifest: JSON.parse(json) as Manifest, bytes: await readFile(path), files: paths };
  });
  const publishable = (await Promise.all(packed)).filter(({ manifest }) => !manifest.private);
  return new Map(publishable.map((entry) => [entry.manifest.name, entry]));
}

/** What is installed under node_modules and is not for development alone, packed again when it is asked for. */
async function installed(root: string): Promise<Release[]> {
  const lock = JSON.parse(await readFile(join(root, 'package-lock.json'), 'utf8')) as {
    packages: Record<string, { version: string; dev?: boolean; link?: boolean; optional?: boolean }>;
  };
  const wanted = Object.entries(lock.packages).filter(
    ([path, { dev, link }]) => path.includes('node_modules/') && !dev && !link,
  );
  const folders = wanted.map(([path]) => join(root, path)).filter((folder) => existsSync(folder));
  const releases = folders.map(async (folder): Promise<Release> => {
    const manifest = JSON.parse(await readFile(join(folder, 'package.json'), 'utf8')) as Manifest;
    const options = ['-cz', '--exclude=node_modules', '-C', dirname(folder), basename(folder)];
    const tarball = () => run('tar', options, { encoding: 'buffer', maxBuffer: 1 << 28 });
    return { manifest, tarball: async () => (await tarball()).stdout };
  });
  // Binaries for other platforms: npm looks at what they are for, and leaves them.
  const absent = wanted.filter(([path, { optional }]) => optional && !existsSync(join(root, path)));
  const foreign = absent.map(([path, entry]): Release => {
    const manifest = { ...entry, name: path.replace(/^.*node_modules\//, '') };
    return { manifest, tarball: () => Promise.reject(new Error(`${path} is not for this platform`)) };
  });
  return [...(await Promise.all(releases)), ...foreign];
}

const ours = ({ manifest, bytes }: Packed): Release => ({
  manifest,
  integrity: `sha512-${createHash('sha512').update(bytes).digest('base64')}`,
  tarball: async () => bytes,
});

/** The document about all versions of a package. */
function packument(releases: readonly Release[], base: string) {
  const versions = releases.map(({ manifest, integrity }) => {
    const tarball = `${base}/-/${encodeURIComponent(`${manifest.name}@${manifest.version}`)}.tgz`;
    return [manifest.version, { ...manifest, dist: { tarball, ...(integrity && { integrity }) } }] as const;
  });
  return {
    name: releases[0]!.manifest.name,
    'dist-tags': { latest: releases.at(-1)!.manifest.version },
    versions: Object.fromEntries(versions),
  };
}

export interface Registry {
  readonly url: string;
  /** Names and versions that were asked for and are not there: dependencies that nobody declared would be among them. */
  readonly missing: readonly string[];
  close(): Promise<void>;
}

/** Serves `packed` and the dependencies installed in `root` on a port of this machine. */
export async function openRegistry(root: string, packed: Iterable<Packed>): Promise<Registry> {
  const releases = [...(await installed(root)), ...[...packed].map(ours)];
  const missing: string[] = [];
  const server: Server = createServer((request, response) => {
    const path = decodeURIComponent(request.url!.slice(1));
    const base = `http://${request.headers.host}`;
    answer(path, base, releases, response).then((found) => {
      if (found) return;
      missing.push(path);
      response.writeHead(404).end('{}');
    });
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}/`,
    missing,
    close: () => new Promise((resolve) => server.close(() => resolve())),
  };
}

async function answer(
  path: string,
  base: string,
  releases: readonly Release[],
  response: ServerResponse,
): Promise<boolean> {
  const file = path.match(/^-\/(.+)@(.+)\.tgz$/);
  const [, name = path, version] = file ?? [];
  const found = releases.filter(
    ({ manifest }) => manifest.name === name && (version ?? manifest.version) === manifest.version,
  );
  if (found.length === 0) return false;
  response.end(file ? await found[0]!.tarball() : JSON.stringify(packument(found, base)));
  return true;
}
