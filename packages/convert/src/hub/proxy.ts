/** Connections to the Hub, through the proxies that the environment names. */
import { CflowError } from '@cflow/format';
import { type Dispatcher, EnvHttpProxyAgent } from 'undici';

/**
 * HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY in either case, the lower first, as curl and Python's libraries have
 * them. A proxy without a scheme is an http:// one.
 * @throws CflowError USAGE for one that is no address, or of a scheme other than http and https
 */
export function environmentDispatcher(): Dispatcher {
  const all = proxyOf('all_proxy');
  // '' instead of undefined: what is absent here must not be looked up once more.
  return new EnvHttpProxyAgent({
    httpProxy: proxyOf('http_proxy') ?? all ?? '',
    httpsProxy: proxyOf('https_proxy') ?? all ?? '',
  });
}

/** What a failed connection adds to its message: the proxy that is used for `url`, without user and password. */
export function proxyFor(url: string): string | undefined {
  const name = new URL(url).protocol === 'https:' ? 'https_proxy' : 'http_proxy';
  const proxy = proxyOf(name) ?? proxyOf('all_proxy');
  return proxy === undefined ? undefined : new URL(proxy).host;
}

function proxyOf(name: string): string | undefined {
  for (const variable of [name, name.toUpperCase()]) {
    const value = process.env[variable]?.trim();
    if (!value) continue;
    const address = value.includes('://') ? value : `http://${value}`;
    if (URL.canParse(address) && /^https?:$/.test(new URL(address).protocol)) return address;
    throw new CflowError('USAGE', 'is not the address of an http or https proxy', {
      field: variable,
      remedy: 'an address such as http://proxy.example:8080; NO_PROXY lists hosts to reach directly',
    });
  }
  return undefined;
}
