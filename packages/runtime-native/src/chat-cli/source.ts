/** The model of a conversation: a file of cflow, or one made of a checkpoint and kept. */
import { spawn } from 'node:child_process';
import { createHash } from 'node:crypto';
import { mkdir, readdir, realpath, stat } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { homedir } from 'node:os';
import { basename, dirname, extname, isAbsolute, join } from 'node:path';
import { CflowError } from '@cflow/format/internal/errors.js';

/** How a checkpoint is to be converted. */
export interface SourceOptions {
  readonly dtype?: string | undefined;
  readonly reconvert?: boolean | undefined;
  readonly environment?: NodeJS.ProcessEnv;
}

/** The conversion failed, and its command has said why. */
export class ConversionFailed extends Error {
  constructor(readonly exitCode: number) {
    super('the conversion failed');
  }
}

/** Files of a checkpoint that its conversion may read. */
const PARTS = /\.(safetensors|json|jinja|model|txt|gguf|bin)$/;

/**
 * The path of a file to open. A checkpoint is converted by cflow-convert into the cache, once: as long as the files, their
 * sizes and times are the same.
 * @throws CflowError NOT_READABLE; UNSUPPORTED without @cflow/convert; ConversionFailed
 */
export async function modelFile(source: string, options: SourceOptions = {}): Promise<string> {
  if (/\.[cv]flow$/i.test(source)) return source;
  const { dtype = 'q4_0', reconvert = false, environment = process.env } = options;
  const key = createHash('sha256')
    .update(JSON.stringify([await identityOf(source), dtype]))
    .digest('hex');
  const folder = join(baseDirectory(environment, 'XDG_CACHE_HOME', '.cache'), 'cflow', 'models');
  const file = join(folder, `${nameOf(source)}-${dtype}-${key.slice(0, 12)}.cflow`);
  if (!reconvert && (await exists(file))) return file;
  await mkdir(folder, { recursive: true });
  await convert([source, file, '--dtype', dtype, ...(reconvert ? ['--overwrite'] : [])]);
  return file;
}

/** What a source is, so that another one, or a changed one, is converted anew. */
async function identityOf(source: string): Promise<unknown> {
  if (source.startsWith('hf:')) return source;
  try {
    const path = await realpath(source);
    if (!(await stat(path)).isDirectory()) return [await stamp(path)];
    const names = (await readdir(path)).filter((name) => PARTS.test(name)).sort();
    return await Promise.all(names.map((name) => stamp(join(path, name))));
  } catch (cause) {
    const { code } = cause as NodeJS.ErrnoException;
    throw new CflowError(
      'NOT_READABLE',
      code === 'ENOENT' ? 'no such file or directory' : `cannot be read: ${code}`,
      {
        file: source,
        remedy: 'name a .cflow, .vflow or .gguf file, a checkpoint directory, or hf:ORG/NAME',
        cause,
      },
    );
  }
}

async function stamp(path: string): Promise<unknown> {
  const { size, mtimeMs } = await stat(path);
  return [path, size, mtimeMs];
}

async function exists(path: string): Promise<boolean> {
  return stat(path).then(
    (found) => found.isFile(),
    () => false,
  );
}

/** A name for people. */
function nameOf(source: string): string {
  const last = source.replace(/^hf:/, '').split('@')[0]!.replace(/\/+$/, '');
  return basename(last, extname(last) === '.gguf' ? '.gguf' : '').replace(/[^\w.-]/g, '_') || 'model';
}

/** A directory of the XDG Base Directory Specification; paths that are not absolute are ignored, as it says. */
export function baseDirectory(environment: NodeJS.ProcessEnv, variable: string, otherwise: string): string {
  const given = environment[variable];
  return given && isAbsolute(given) ? given : join(environment.HOME || homedir(), otherwise);
}

/** Runs cflow-convert, whose progress and messages go to stderr. */
async function convert(args: readonly string[]): Promise<void> {
  const command = join(dirname(convertPackage()), 'bin/cflow-convert.js');
  const child = spawn(process.execPath, [command, ...args], { stdio: ['ignore', 2, 'inherit'] });
  // A Ctrl-C reaches the child as well, which ends and says so.
  const ignore = () => undefined;
  process.on('SIGINT', ignore);
  try {
    const code = await new Promise<number>((resolve, reject) => {
      child.once('error', reject);
      child.once('exit', (exit, signal) => resolve(exit ?? (signal === 'SIGINT' ? 130 : 70)));
    });
    if (code !== 0) throw new ConversionFailed(code);
  } finally {
    process.off('SIGINT', ignore);
  }
}

function convertPackage(): string {
  try {
    return createRequire(import.meta.url).resolve('@cflow/convert/package.json');
  } catch (cause) {
    throw new CflowError(
      'UNSUPPORTED',
      'checkpoints are converted by @cflow/convert, which is not installed',
      {
        remedy: 'npm install @cflow/convert, or name a .cflow file',
        cause,
      },
    );
  }
}
