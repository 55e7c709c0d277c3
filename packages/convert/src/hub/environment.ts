/** The environment variables of the Hub's Python library, with the same meaning; an empty one is unset. */
import { readFile } from 'node:fs/promises';
import { homedir } from 'node:os';
import { join } from 'node:path';
import { CflowError } from '@cflow/format';

export interface HubEnvironment {
  /** Without a slash at its end. */
  readonly endpoint: string;
  readonly token: string | undefined;
  /** Holds one directory a repository. */
  readonly cacheDir: string;
  readonly offline: boolean;
  /** How long a connection may be silent, in milliseconds. */
  readonly timeoutMs: number;
}

const ENDPOINT = 'https://huggingface.co';
const TIMEOUT_SECONDS = 30;
const TRUE = new Set(['1', 'ON', 'YES', 'TRUE']);
/** What a header can carry of a token: visible ASCII. */
const TOKEN = /^[\x21-\x7e]+$/;

/**
 * HF_ENDPOINT, HF_TOKEN (or HUGGING_FACE_HUB_TOKEN, or the file that `hf auth login` writes), HF_HOME, HF_HUB_CACHE,
 * HF_HUB_OFFLINE, HF_HUB_DOWNLOAD_TIMEOUT (seconds).
 * @throws CflowError USAGE for an endpoint that is no address, or a token that no header can carry
 */
export async function hubEnvironment(): Promise<HubEnvironment> {
  const seconds = Number(process.env.HF_HUB_DOWNLOAD_TIMEOUT);
  return {
    endpoint: hubEndpoint(),
    token: await accessToken(),
    cacheDir: hubCacheDir(),
    offline: isTrue('HF_HUB_OFFLINE') || isTrue('TRANSFORMERS_OFFLINE'),
    timeoutMs: 1000 * (seconds > 0 ? seconds : TIMEOUT_SECONDS),
  };
}

function isTrue(name: string): boolean {
  return TRUE.has((process.env[name] ?? '').toUpperCase());
}

function hubEndpoint(): string {
  const endpoint = (process.env.HF_ENDPOINT || ENDPOINT).replace(/\/+$/, '');
  const url = URL.canParse(endpoint) ? new URL(endpoint) : undefined;
  if (url && /^https?:$/.test(url.protocol) && !url.username && !url.password) return endpoint;
  // An address may hold a password, so it is not repeated.
  const problem =
    url?.username || url?.password ? 'holds a user name or password' : 'is not an http(s) address';
  throw new CflowError('USAGE', problem, {
    field: 'HF_ENDPOINT',
    remedy: `an address such as ${ENDPOINT}; a token goes into HF_TOKEN`,
  });
}

/** A path from a variable: `~` and `$NAME` or `${NAME}` as Python's expanduser and expandvars; unknown names stay. */
function expanded(path: string): string {
  const fromHome = path.replace(/^~(?=\/|$)/, () => homedir());
  return fromHome.replace(
    /\$(?:(\w+)|\{([^}]*)\})/g,
    (whole, bare?: string, braced?: string) => process.env[bare ?? braced ?? ''] ?? whole,
  );
}

function hubHome(): string {
  const { HF_HOME, XDG_CACHE_HOME } = process.env;
  return expanded(HF_HOME || join(XDG_CACHE_HOME || '~/.cache', 'huggingface'));
}

function hubCacheDir(): string {
  const { HF_HUB_CACHE, HUGGINGFACE_HUB_CACHE } = process.env;
  return expanded(HF_HUB_CACHE || HUGGINGFACE_HUB_CACHE || join(hubHome(), 'hub'));
}

async function accessToken(): Promise<string | undefined> {
  for (const name of ['HF_TOKEN', 'HUGGING_FACE_HUB_TOKEN']) {
    const token = process.env[name]?.trim();
    if (token) return checkedToken(token, { field: name });
  }
  const file = expanded(process.env.HF_TOKEN_PATH || join(hubHome(), 'token'));
  const token = (await readFile(file, 'utf8').catch(() => '')).trim();
  return token ? checkedToken(token, { file }) : undefined;
}

/** The error says where the token comes from and never what it is. */
function checkedToken(token: string, from: { readonly field?: string; readonly file?: string }): string {
  if (TOKEN.test(token)) return token;
  const problem = /\s/.test(token)
    ? 'the token has white space or a line break inside'
    : 'the token has characters outside of ASCII';
  throw new CflowError('USAGE', problem, {
    ...from,
    remedy: 'it must be one word such as hf_…; set it again',
  });
}
