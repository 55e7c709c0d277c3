/** One file of a repository over HTTP: any range of it, through redirects and broken connections. */
import { CflowError } from '@cflow/format';
import { type Answer, type HubClient, MAX_REDIRECTS, orCancel, redirection, refuse } from './client.js';
import { changedError, type HubPlace, placeName, statusError, Transient } from './errors.js';
import type { HubFile } from './listing.js';

/** Progress that counts: a server that gives a few bytes and hangs up, again and again, is a broken one. */
const PROGRESS_BYTES = 256 * 1024;
/** What a content host answers once a signed address has expired. */
const EXPIRED = new Set([401, 403, 404, 410]);

export class RemoteFile {
  readonly file: HubFile;
  readonly #client: HubClient;
  readonly #place: HubPlace;
  readonly #commit: string;
  readonly #url: string;
  /** Where the Hub sent us last; signed addresses hold for minutes, so that not each range asks the Hub. */
  #location: string | undefined;
  /** Of the contents, as the host that has them says. */
  #etag: string | undefined;

  constructor(client: HubClient, { repo, commit, file }: { repo: string; commit: string; file: HubFile }) {
    this.file = file;
    this.#client = client;
    this.#commit = commit;
    this.#place = client.place(repo, commit, file.name);
    const path = file.name.split('/').map(encodeURIComponent).join('/');
    this.#url = `${client.environment.endpoint}/${repo}/resolve/${commit}/${path}`;
  }

  /** What errors call it. */
  get name(): string {
    return placeName(this.#place);
  }

  get place(): HubPlace {
    return this.#place;
  }

  /**
   * The bytes [start, end), in pieces. A broken connection is continued where it broke.
   * @throws CflowError NOT_READABLE (status and remedy, or after too many attempts), VERIFY_FAILED if the file is, or
   *   becomes, another one, UNSUPPORTED if the server gives no ranges, INTERRUPTED
   */
  async *stream(start: number, end: number): AsyncGenerator<Uint8Array> {
    let at = start;
    let failures = 0;
    let counted = start;
    while (at < end) {
      const before = at;
      try {
        for await (const piece of this.#range(at, end)) {
          at += piece.length;
          yield piece;
        }
        // A server may give less than it was asked for; one that gives nothing is no use.
        if (at === before) throw new Transient(`nothing came of bytes ${at} to ${end}`);
      } catch (error) {
        if (at - counted >= PROGRESS_BYTES) failures = 0;
        counted = at;
        await this.#client.pause(this.#place, failures++, error);
      }
    }
  }

  /** One attempt: no byte beyond `end`, perhaps fewer. */
  async *#range(at: number, end: number): AsyncGenerator<Uint8Array> {
    const answer = await this.#open(at, end);
    let skip = this.#checkRange(answer, at, end);
    let left = end - at;
    for await (const chunk of answer.chunks()) {
      const from = Math.min(skip, chunk.length);
      skip -= from;
      const piece = chunk.subarray(from, Math.min(chunk.length, from + left));
      left -= piece.length;
      if (piece.length > 0) yield piece;
      if (left === 0) return;
    }
  }

  async #open(at: number, end: number): Promise<Answer> {
    const known = this.#location !== undefined;
    let url = this.#location ?? this.#url;
    for (let hops = 0; hops <= MAX_REDIRECTS; hops++) {
      const answer = await this.#client.send(url, { range: `bytes=${at}-${end - 1}` });
      const next = this.#next(answer, url);
      if (next === undefined) {
        this.#accept(answer, { known, elsewhere: url !== this.#url });
        if (hops > 0) this.#location = url;
        return answer;
      }
      answer.cancel();
      url = next;
    }
    throw new CflowError('NOT_READABLE', `more than ${MAX_REDIRECTS} redirects`, { file: this.name });
  }

  /** The address of a redirect, after its claims have been compared with the listing. */
  #next(answer: Answer, url: string): string | undefined {
    const next = orCancel(answer, () => redirection(answer.response, url));
    if (next === undefined && url !== this.#url) return undefined;
    const { headers } = answer.response;
    const claims = [
      ['X-Repo-Commit', headers.get('x-repo-commit'), this.#commit],
      ['X-Linked-Size', headers.get('x-linked-size'), String(this.file.bytes)],
      ['X-Linked-Etag', bare(headers.get('x-linked-etag')), this.file.sha256 ?? this.file.oid],
    ] as const;
    for (const [name, claimed, listed] of claims) {
      if (claimed === null || claimed === listed) continue;
      answer.cancel();
      throw changedError(this.#place, `${name} is ${claimed}, the listing says ${listed}`);
    }
    return next;
  }

  /** @throws as the status demands */
  #accept(answer: Answer, { known, elsewhere }: { known: boolean; elsewhere: boolean }): void {
    const { response } = answer;
    try {
      if (response.ok) return;
      if (response.status === 416)
        throw changedError(this.#place, 'the range is not there: the file is shorter than listed');
      if (known && EXPIRED.has(response.status)) {
        this.#location = undefined;
        throw new Transient(`an expired address: ${response.status}`, {
          waitMs: 0,
          cause: statusError(this.#place, response),
        });
      }
      if (elsewhere && EXPIRED.has(response.status)) {
        throw new CflowError('NOT_READABLE', `${new URL(response.url).host} answers ${response.status}`, {
          file: this.name,
          value: response.status,
          remedy: 'the Hub sent us there; try again later',
        });
      }
      refuse(this.#place, response);
    } catch (error) {
      answer.cancel();
      throw error;
    }
  }

  /** Bytes at the start of the body that were not asked for. @throws CflowError if it is another range or file */
  #checkRange(answer: Answer, at: number, end: number): number {
    try {
      const { status, headers } = answer.response;
      this.#checkTag(headers.get('etag'));
      if (status !== 206) return this.#wholeFile(headers.get('content-length'), at, end);
      const range = headers.get('content-range') ?? '';
      const [, first, total] = /^bytes (\d+)-\d+\/(\d+)$/.exec(range) ?? [];
      if (Number(total) === this.file.bytes && Number(first) === at) return 0;
      throw changedError(this.#place, `asked for byte ${at} of ${this.file.bytes}, got "${range}"`);
    } catch (error) {
      answer.cancel();
      throw error;
    }
  }

  #wholeFile(length: string | null, at: number, end: number): number {
    if (length !== null && Number(length) !== this.file.bytes) {
      throw changedError(this.#place, `${length} bytes, the listing says ${this.file.bytes}`);
    }
    // To the end of the file little is wasted; range by range it would be the whole file each time.
    if (end === this.file.bytes) return at;
    throw new CflowError('UNSUPPORTED', 'the server gives no ranges of files', {
      file: this.name,
      remedy: 'convert without --no-cache',
    });
  }

  #checkTag(etag: string | null): void {
    if (etag === null) return;
    this.#etag ??= etag;
    if (etag !== this.#etag) {
      throw changedError(this.#place, `the file changed while it was read: ETag ${this.#etag}, now ${etag}`);
    }
  }
}

/** An ETag without its quotes and without the mark of a weak one. */
function bare(etag: string | null): string | null {
  return etag === null ? null : etag.replace(/^W\//, '').replace(/^"(.*)"$/, '$1');
}
