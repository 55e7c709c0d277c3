import { inspect, render } from '@cflow/inspect';

/** A ByteSource over HTTP ranges: nothing is fetched but what is read. */
async function rangeSource(url) {
  const head = await fetch(url, { method: 'HEAD' });
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

const source = await rangeSource(new URLSearchParams(location.search).get('file'));
const report = await inspect(source, { sections: [] });
const text = render(report, ['summary']);
document.querySelector('#report').textContent =
  `${text}\nfetched ${source.fetched()} of ${source.size} bytes`;
