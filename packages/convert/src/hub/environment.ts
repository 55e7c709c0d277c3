/** The environment variables of the Hub's Python library, with the same meaning. */
import { readFile } from 'node:fs/promises';
import { homedir } from 'node:os';
import { join } from 'node:path';
import { CflowError } from '@cflow/format';
import { getHFHubCachePath } from '@huggingface/hub';

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

/**
 * HF_ENDPOINT, HF_TOKEN (or the file that `hf auth login` writes), HF_HOME and HF_HUB_CACHE, HF_HUB_OFFLINE,
 * HF_HUB_DOWNLOAD_TIMEOUT (seconds).
 * @throws CflowError USAGE for an endpoint that is no address
 */
export async function hubEnvironment(): Promise<HubEnvironment> {
  const { env } = process;
  const endpoint = (env.HF_ENDPOINT || ENDPOINT).replace(/\/+$/, '');
  if (!/^https?:$/.test(URL.canParse(endpoint) ? new URL(endpoint).protocol : '')) {
    throw new CflowError('USAGE', `HF_ENDPOINT is ${JSON.stringify(endpoint)}`, {
      field: 'HF_ENDPOINT',
      value: endpoint,
      remedy: `an address such as ${ENDPOINT}`,
    });
  }
  const seconds = Number(env.HF_HUB_DOWNLOAD_TIMEOUT);
  return {
    endpoint,
    token: await accessToken(),
    cacheDir: getHFHubCachePath(),
    offline: TRUE.has((env.HF_HUB_OFFLINE ?? '').toUpperCase()),
    timeoutMs: 1000 * (seconds > 0 ? seconds : TIMEOUT_SECONDS),
  };
}

async function accessToken(): Promise<string | undefined> {
  const { HF_TOKEN, HF_TOKEN_PATH, HF_HOME, XDG_CACHE_HOME } = process.env;
  if (HF_TOKEN?.trim()) return HF_TOKEN.trim();
  const home = HF_HOME || join(XDG_CACHE_HOME || join(homedir(), '.cache'), 'huggingface');
  const text = await readFile(HF_TOKEN_PATH || join(home, 'token'), 'utf8').catch(() => '');
  return text.trim() || undefined;
}
