/** Arguments of cflow-run in a place where something else is expected. */
import { stat } from 'node:fs/promises';
import { basename, extname, resolve } from 'node:path';
import { CflowError } from '@cflow/format/internal/errors.js';

const isModelName = (name: string) => ['.cflow', '.vflow'].includes(extname(name));
/** As a shell needs it. */
const quoted = (text: string) => (/^[\w./:=-]+$/.test(text) ? text : `"${text.replace(/[\\"$`]/g, '\\$&')}"`);
/** A prompt may be long; a line to type is not. */
const shortened = (text: string) => (text.length > 60 ? `${text.slice(0, 57)}...` : text);

interface Given {
  readonly file: string;
  /** Arguments beyond the file. */
  readonly more?: readonly string[] | undefined;
  readonly prompt?: string | undefined;
}

/** @throws CflowError USAGE for a prompt without --prompt, and for a model as the prompt, with the line to type */
export function refuseMisplaced({ file, more = [], prompt }: Given): void {
  const [other] = more;
  if (other !== undefined) {
    const [model, text] = isModelName(other) && !isModelName(file) ? [other, file] : [file, other];
    throw new CflowError('USAGE', `one model is expected, not also ${quoted(shortened(other))}`, {
      value: other,
      remedy: `a prompt needs --prompt: cflow-run ${quoted(model)} --prompt ${quoted(shortened(text))}`,
    });
  }
  if (prompt === undefined || !isModelName(prompt) || isModelName(file)) return;
  throw new CflowError('USAGE', `${quoted(prompt)} is the prompt, and ${quoted(shortened(file))} the model`, {
    value: file,
    remedy: `the model has no option: cflow-run ${quoted(prompt)} --prompt ${quoted(shortened(file))}`,
  });
}

/** `organization/name`, as on the Hub. */
const REPOSITORY = /^[A-Za-z0-9][\w.-]*\/[A-Za-z0-9][\w.-]*$/;

/** @throws CflowError NOT_READABLE for a directory, and for what is called as a repository on the Hub and is no file */
export async function refuseUnconverted(path: string): Promise<void> {
  const stats = await stat(path).catch(() => undefined);
  const convert = (source: string) =>
    `convert it first: cflow-convert ${quoted(source)} ${quoted(`${basename(resolve(path))}.cflow`)}`;
  if (stats?.isDirectory()) {
    const remedy = convert(path);
    throw new CflowError('NOT_READABLE', 'is a directory, where a .cflow or .vflow is expected', {
      file: path,
      remedy,
    });
  }
  if (stats || isModelName(path) || !REPOSITORY.test(path)) return;
  throw new CflowError('NOT_READABLE', 'cannot open: ENOENT', {
    file: path,
    remedy: `if it is a repository on the Hub, ${convert(`hf:${path}`)}`,
  });
}
