/** Files on a web server or on the Hub, read by ranges: one request for their beginning, one for each read behind it. */
import { CflowError } from '@cflow/format/internal/errors.js';
import type { FileSource } from '@cflow/format/node';

/** Holds the whole head of most files; a longer one takes a second request. */
const FIRST_BYTES = 128 * 1024;
/** Milliseconds that a server may take. */
const PATIENCE = 60_000;

/** A URL, or a file of a repository on the Hub: `hf:org/name/file`. */
export function remoteUrl(path: string): string | undefined {
  if (/^https?:\/\//.test(path)) return path;
  const [, repository, file] = /^hf:([^/]+\/[^/]+)\/(.+)$/.exec(path) ?? [];
  const endpoint = process.env.HF_ENDPOINT || 'https://huggingface.co';
  return file === undefined ? undefined : `${endpoint}/${repository}/resolve/main/${file}`;
}

/** A token is for the Hub alone. */
function headersFor(url: string): Record<string, string> {
  const endpoint = process.env.HF_ENDPOINT || 'https://huggingface.co';
  const token = process.env.HF_TOKEN;
  return token && url.startsWith(`${endpoint}/`) ? { authorization: `Bearer ${token}` } : {};
}

function refuse(file: string, problem: string, remedy?: string, cause?: unknown): never {
  throw new CflowError('NOT_READABLE', problem, { file, remedy, cause });
}

interface Answer {
  readonly bytes: Uint8Array;
  readonly size: number;
  readonly tag: string | null;
}

async function requestRange(url: string, name: string, from: number, length: number): Promise<Answer> {
  const range = `bytes=${from}-${from + length - 1}`;
  const signal = AbortSignal.timeout(PATIENCE);
  const answer = await fetch(url, { headers: { ...headersFor(url), range }, signal }).catch((cause) =>
    refuse(name, `cannot fetch: ${cause?.cause?.code ?? cause}`, 'check the address and the network', cause),
  );
  if (answer.status === 200) {
    await answer.body?.cancel();
    refuse(name, 'the server ignores ranges and would send the whole file', 'download it first');
  }
  if (answer.status !== 206)
    refuse(
      name,
      `the server says ${answer.status}`,
      'check the address, and HF_TOKEN for a private repository',
    );
  const [, start, size] = /^bytes (\d+)-\d+\/(\d+)$/.exec(answer.headers.get('content-range') ?? '') ?? [];
  if (Number(start) !== from) refuse(name, 'the server sent another range than was asked for');
  const bytes = new Uint8Array(await answer.arrayBuffer());
  return { bytes, size: Number(size), tag: answer.headers.get('etag') };
}

/** @throws CflowError NOT_READABLE: no connection, no such file, no ranges, or a file that changes meanwhile */
export async function openRemoteSource(url: string, name = url): Promise<FileSource> {
  const first = await requestRange(url, name, 0, FIRST_BYTES);
  const { size, tag } = first;
  return {
    name,
    size,
    async read(offset, length) {
      const end = offset + length;
      if (end <= first.bytes.length) return first.bytes.subarray(offset, end);
      const from = Math.max(offset, offset < first.bytes.length ? first.bytes.length : 0);
      const answer = await requestRange(url, name, from, end - from);
      if (answer.tag !== tag || answer.size !== size)
        refuse(name, 'the file changed while it was read', 'try again');
      if (answer.bytes.length !== end - from)
        refuse(name, `need ${end - from} bytes, have ${answer.bytes.length}`);
      if (from === offset) return answer.bytes;
      const bytes = new Uint8Array(length);
      bytes.set(first.bytes.subarray(offset));
      bytes.set(answer.bytes, from - offset);
      return bytes;
    },
    close: async () => undefined,
  };
}
