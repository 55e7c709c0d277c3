/**
 * Serves this repository, and a folder of models as /models/, with ranges, for the page beside this file:
 *
 *     npm run build && node examples/browser/serve.mjs .
 *     open http://127.0.0.1:8080/examples/browser/?file=/models/stories.cflow
 */
import { createReadStream } from 'node:fs';
import { stat } from 'node:fs/promises';
import { createServer } from 'node:http';
import { extname, join, normalize } from 'node:path';
import { fileURLToPath } from 'node:url';

const ROOT = fileURLToPath(new URL('../..', import.meta.url));
const TYPES = { '.html': 'text/html', '.js': 'text/javascript', '.mjs': 'text/javascript' };

/** Where a path leads: never above the two folders. */
function fileOf(url, models) {
  const path = normalize(decodeURIComponent(new URL(url, 'http://localhost').pathname));
  if (path.startsWith('/models/')) return join(models, path.slice('/models/'.length));
  return join(ROOT, path.endsWith('/') ? `${path}index.html` : path);
}

async function answer(file, request, response) {
  const { size } = await stat(file);
  const [, from, to] = /^bytes=(\d+)-(\d+)$/.exec(request.headers.range ?? '') ?? [];
  const [start, end] = from ? [Number(from), Math.min(Number(to), size - 1)] : [0, size - 1];
  response.writeHead(from ? 206 : 200, {
    'content-type': TYPES[extname(file)] ?? 'application/octet-stream',
    'content-length': end - start + 1,
    ...(from && { 'content-range': `bytes ${start}-${end}/${size}` }),
  });
  if (request.method === 'HEAD') response.end();
  else createReadStream(file, { start, end }).pipe(response);
}

/** On this machine alone; port 0 takes a free one. */
export function serve(models, port = 0) {
  const server = createServer((request, response) => {
    answer(fileOf(request.url, models), request, response).catch(() => response.writeHead(404).end());
  });
  return new Promise((resolve) => server.listen(port, '127.0.0.1', () => resolve(server)));
}

if (process.argv[1] === fileURLToPath(import.meta.url)) await serve(process.argv[2] ?? '.', 8080);
