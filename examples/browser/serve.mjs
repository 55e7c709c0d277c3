/**
 * Serves this repository, and a folder of models, with ranges, for the page beside this file. The paths below /models/ are
 * those of the folder that the command line names, not of models/ in the repository; the port is 8080 unless one follows:
 *
 *     npm run build && node examples/browser/serve.mjs . 8080
 *     open http://127.0.0.1:8080/examples/browser/?file=/models/stories.cflow
 */
import { createReadStream } from 'node:fs';
import { stat } from 'node:fs/promises';
import { createServer } from 'node:http';
import { extname, join, normalize, resolve as resolvePath } from 'node:path';
import { pipeline } from 'node:stream';
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
  const info = await stat(file);
  if (!info.isFile()) throw new Error(`${file} is not a file`);
  const { size } = info;
  const [, from, to] = /^bytes=(\d+)-(\d+)$/.exec(request.headers.range ?? '') ?? [];
  const [start, end] = from ? [Number(from), Math.min(Number(to), size - 1)] : [0, size - 1];
  response.writeHead(from ? 206 : 200, {
    'content-type': TYPES[extname(file)] ?? 'application/octet-stream',
    'content-length': end - start + 1,
    ...(from && { 'content-range': `bytes ${start}-${end}/${size}` }),
  });
  if (request.method === 'HEAD') response.end();
  else pipeline(createReadStream(file, { start, end }), response, () => undefined);
}

/** On this machine alone; port 0 takes a free one. Rejects where it cannot listen. */
export function serve(models, port = 0) {
  const server = createServer((request, response) => {
    Promise.resolve()
      .then(() => answer(fileOf(request.url, models), request, response))
      .catch(() => response.writeHead(404).end());
  });
  return new Promise((resolve, reject) => {
    server.once('error', reject).listen(port, '127.0.0.1', () => resolve(server));
  });
}

const USAGE = 'usage: node examples/browser/serve.mjs [FOLDER OF MODELS] [PORT]';
const REMEDIES = {
  EADDRINUSE: 'another program has it; give another port, or 0 for one that is free',
  EACCES: 'not allowed; give a port from 1024 on',
};

/** The command; returns its exit code, or undefined while it serves. */
async function main([models = '.', port = '8080', ...more]) {
  const isPort = /^\d+$/.test(port) && Number(port) < 65_536;
  if (models.startsWith('-') || !isPort || more.length) {
    console.error(USAGE);
    return 2;
  }
  const folder = resolvePath(models);
  if (!(await stat(folder).catch(() => undefined))?.isDirectory()) {
    console.error(`serve: error: ${folder}: no such folder`);
    return 1;
  }
  try {
    const site = `http://127.0.0.1:${(await serve(folder, Number(port))).address().port}`;
    console.log(`${site}/examples/browser/?file=/models/NAME.cflow, where /models/ is ${folder}`);
  } catch (error) {
    console.error(`serve: error: port ${port}: ${REMEDIES[error.code] ?? error.message}`);
    return 1;
  }
}

if (process.argv[1] === fileURLToPath(import.meta.url)) process.exitCode = await main(process.argv.slice(2));
