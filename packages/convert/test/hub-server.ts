import { createHash } from 'node:crypto';
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';

/** What a request meets instead of an answer. */
export type Fault =
  | { status: number; headers?: Record<string, string> }
  /** The connection ends after so many bytes of the body. */
  | { cutAfter: number }
  /** 206 with so many bytes less than was asked for. */
  | { short: number }
  | { etag: string }
  | { body: Uint8Array; status?: number; headers?: Record<string, string> }
  /** Ranges are not understood. */
  | { whole: true }
  /** Sends so many bytes of the body, and then neither sends nor hangs up. */
  | { stallAfter: number }
  /** Neither answers nor hangs up. */
  | { silent: true };

export interface Seen {
  host: 'hub' | 'content';
  method: string;
  /** Path without the query. */
  path: string;
  range: string | undefined;
  authorization: string | undefined;
}

export interface FakeRepo {
  commit: string;
  /** Names of revisions beside `main` and the commit. */
  revisions?: string[];
  files: Record<string, Uint8Array>;
  /** Needs this token. */
  token?: string;
}

/** A server that speaks the Hub's HTTP API, and a second one, of another origin, that has the large files. */
export class FakeHub {
  readonly repos: Record<string, FakeRepo> = Object.create(null);
  readonly seen: Seen[] = [];
  /** Asked for each request; the first answer counts. */
  fault: (request: Seen) => Fault | undefined = () => undefined;
  /** Changes what the listing says of a file. */
  relist: (entry: Record<string, unknown>) => Record<string, unknown> = (entry) => entry;
  /** Entries of one page of the listing. */
  pageSize = 1000;
  readonly #hub: Server;
  readonly #content: Server;

  private constructor() {
    this.#hub = createServer((request, response) => this.#serve('hub', request, response));
    this.#content = createServer((request, response) => this.#serve('content', request, response));
  }

  static async start(): Promise<FakeHub> {
    const hub = new FakeHub();
    for (const server of [hub.#hub, hub.#content]) {
      await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
    }
    return hub;
  }

  async stop(): Promise<void> {
    for (const server of [this.#hub, this.#content]) {
      server.closeAllConnections();
      await new Promise((resolve) => server.close(resolve));
    }
  }

  get endpoint(): string {
    return `http://127.0.0.1:${(this.#hub.address() as AddressInfo).port}`;
  }

  /** Requests for contents, by what they are for. */
  fetched(name: string): Seen[] {
    return this.seen.filter(({ path }) => path.endsWith(`/${name}`));
  }

  #serve(host: Seen['host'], request: IncomingMessage, response: ServerResponse): void {
    const url = new URL(request.url!, this.endpoint);
    const { range, authorization } = request.headers;
    const seen = {
      host,
      method: request.method!,
      path: decodeURIComponent(url.pathname),
      range,
      authorization,
    };
    this.seen.push(seen);
    const fault = this.fault(seen);
    if (fault && 'silent' in fault) return;
    if (fault && 'status' in fault && !('body' in fault)) {
      response.writeHead(fault.status!, fault.headers).end('{"error":"as asked"}');
    } else if (fault && 'body' in fault) {
      response.writeHead(fault.status ?? 200, fault.headers).end(fault.body);
    } else if (host === 'content') this.#content_(seen, response, fault);
    else this.#api(url, seen, response, fault);
  }

  #api(url: URL, seen: Seen, response: ServerResponse, fault: Fault | undefined): void {
    const json = (value: unknown, headers = {}) =>
      response.writeHead(200, { 'content-type': 'application/json', ...headers }).end(JSON.stringify(value));
    const refuse = (status: number, code: string) =>
      response
        .writeHead(status, { 'x-error-code': code, 'content-type': 'application/json' })
        .end('{"error":"no"}');
    // Revisions come encoded, so they are decoded part by part.
    const api = /^\/api\/models\/(.+?)\/(revision|tree)\/([^/]+)$/.exec(url.pathname);
    const resolve = /^\/(.+?)\/resolve\/([^/]+)\/(.+)$/.exec(url.pathname);
    const [, name = '', ...rest] = api ?? resolve ?? [];
    const repo = this.repos[name];
    if (!repo) return void refuse(seen.authorization ? 404 : 401, 'RepoNotFound');
    if (repo.token && seen.authorization !== `Bearer ${repo.token}`) return void refuse(403, 'GatedRepo');
    const revision = decodeURIComponent(api ? rest[1]! : rest[0]!);
    if (![repo.commit, 'main', ...(repo.revisions ?? [])].includes(revision))
      return void refuse(404, 'RevisionNotFound');
    if (api && rest[0] === 'revision')
      return void json({ _id: '1', id: name, sha: repo.commit, lastModified: 0 });
    if (api) return void this.#tree(url, repo, json);
    const file = decodeURIComponent(rest[1]!);
    const bytes = Object.hasOwn(repo.files, file) ? repo.files[file] : undefined;
    if (!bytes) return void refuse(404, 'EntryNotFound');
    const headers = { 'x-repo-commit': repo.commit };
    if (!isLarge(file))
      return void sendBytes(response, bytes, {
        seen,
        headers: { ...headers, etag: `"${gitOid(bytes)}"` },
        fault,
      });
    const location = `http://localhost:${(this.#content.address() as AddressInfo).port}/${name}/${file}?signed=1`;
    const linked = { 'x-linked-size': bytes.length, 'x-linked-etag': `"${sha256(bytes)}"` };
    response.writeHead(302, { ...headers, ...linked, location }).end();
  }

  #tree(url: URL, repo: FakeRepo, json: (value: unknown, headers?: object) => unknown): void {
    const all = Object.entries(repo.files).map(([path, bytes]) =>
      this.relist({
        type: 'file',
        oid: gitOid(bytes),
        size: bytes.length,
        path,
        ...(isLarge(path) ? { lfs: { oid: sha256(bytes), size: bytes.length, pointerSize: 134 } } : {}),
      }),
    );
    const from = Number(url.searchParams.get('cursor') ?? 0);
    const next = from + this.pageSize;
    url.searchParams.set('cursor', String(next));
    const link = next < all.length ? { link: `<${url.href}>; rel="next"` } : {};
    json([{ type: 'directory', oid: '0'.repeat(40), size: 0, path: 'onnx' }, ...all.slice(from, next)], link);
  }

  #content_(seen: Seen, response: ServerResponse, fault: Fault | undefined): void {
    const [, name, file] = /^\/(.+)\/([^/]+)$/.exec(seen.path)!;
    const bytes = this.repos[name!]!.files[file!]!;
    sendBytes(response, bytes, { seen, headers: { etag: `"content-${bytes.length}"` }, fault });
  }
}

function sendBytes(
  response: ServerResponse,
  bytes: Uint8Array,
  { seen, headers, fault }: { seen: Seen; headers: Record<string, string>; fault: Fault | undefined },
): void {
  const asked = /^bytes=(\d+)-(\d+)$/.exec(seen.range ?? '');
  const ranged = asked && !(fault && 'whole' in fault);
  const start = ranged ? Number(asked[1]) : 0;
  let end = ranged ? Math.min(Number(asked[2]) + 1, bytes.length) : bytes.length;
  if (ranged && start >= bytes.length) return void response.writeHead(416).end();
  if (fault && 'short' in fault) end = Math.max(start + 1, end - fault.short);
  const all = {
    ...headers,
    ...(fault && 'etag' in fault ? { etag: fault.etag } : {}),
    'content-length': String(end - start),
    ...(ranged ? { 'content-range': `bytes ${start}-${end - 1}/${bytes.length}` } : {}),
  };
  response.writeHead(ranged ? 206 : 200, all);
  const part = bytes.subarray(start, end);
  if (fault && 'cutAfter' in fault)
    response.write(part.subarray(0, fault.cutAfter), () => response.destroy());
  else if (fault && 'stallAfter' in fault) response.write(part.subarray(0, fault.stallAfter));
  else response.end(part);
}

export function isLarge(file: string): boolean {
  return file.endsWith('.safetensors') || file === 'tokenizer.json';
}

export function sha256(bytes: Uint8Array): string {
  return createHash('sha256').update(bytes).digest('hex');
}

export function gitOid(bytes: Uint8Array): string {
  return createHash('sha1').update(`blob ${bytes.length}\0`).update(bytes).digest('hex');
}
