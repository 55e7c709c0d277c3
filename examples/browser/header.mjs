import { inspect, render } from '@cflow/inspect';

const USAGE = 'Which file? Add ?file=/models/NAME.cflow to the address.';

/** A ByteSource over HTTP ranges: nothing is fetched but what is read. */
async function rangeSource(url) {
  const head = await fetch(url, { method: 'HEAD' });
  if (!head.ok) throw new Error(`${url}: the server answers ${head.status} ${head.statusText}`);
  const size = Number(head.headers.get('content-length'));
  let fetched = 0;
  const read = async (offset, length) => {
    const response = await fetch(url, { headers: { range: `bytes=${offset}-${offset + length - 1}` } });
    if (response.status !== 206) throw new Error(`${url}: answers ranges with status ${response.status}`);
    const bytes = new Uint8Array(await response.arrayBuffer());
    fetched += bytes.length;
    return bytes;
  };
  return { name: url, size, read, fetched: () => fetched };
}

async function report(file) {
  if (!file) return USAGE;
  const source = await rangeSource(file);
  const text = render(await inspect(source, { sections: [] }), ['summary']);
  return `${text}\nfetched ${source.fetched()} of ${source.size} bytes`;
}

const shown = report(new URLSearchParams(location.search).get('file'));
document.querySelector('#report').textContent = await shown.catch((error) => `error: ${error.message}`);
