/**
 * The Hub's cache on disk, in the layout that all its libraries share: `blobs/<hash>` with the contents,
 * `snapshots/<commit>/<name>` linking to them, `refs/<revision>` with a commit. Reading needs no write permission.
 */
import { mkdir, readFile, rename, stat, symlink, unlink, writeFile } from 'node:fs/promises';
import { dirname, join, relative } from 'node:path';
import { CflowError } from '@cflow/format';
import { errno, type FileSource, openUnlessMissing } from '@cflow/format/node';
import { getRepoFolderName } from '@huggingface/hub';
import type { HubFile } from './listing.js';
import { isCommit } from './name.js';

export class HubCache {
  readonly dir: string;

  /** `cacheDir`: of all repositories. */
  constructor(cacheDir: string, repo: string) {
    this.dir = join(cacheDir, getRepoFolderName({ name: repo, type: 'model' }));
  }

  blob({ sha256, oid }: HubFile): string {
    return join(this.dir, 'blobs', sha256 ?? oid);
  }

  /** @throws CflowError CONFIG_INVALID for a name that leaves the snapshot */
  path(commit: string, name: string): string {
    const parts = name.split('/');
    if (isCommit(commit) && !/[\\\0]/.test(name) && !parts.some((part) => ['', '.', '..'].includes(part))) {
      return join(this.dir, 'snapshots', commit, ...parts);
    }
    throw new CflowError(
      'CONFIG_INVALID',
      `${JSON.stringify(name)} is not the name of a file in a repository`,
      {
        file: this.dir,
        value: name,
      },
    );
  }

  /** Undefined if it is not there, or has not the size that it should have. */
  async open(commit: string, name: string, bytes?: number): Promise<FileSource | undefined> {
    const source = await openUnlessMissing(this.path(commit, name)).catch((error) => {
      // A cache that is no directory has nothing; writing to it will say what is wrong.
      if (error instanceof CflowError && errno(error.details.cause) === 'ENOTDIR') return undefined;
      throw error;
    });
    if (!source || bytes === undefined || source.size === bytes) return source;
    await source.close();
    return undefined;
  }

  /** The commit that a revision was when it was last fetched. */
  async commitOf(revision: string): Promise<string | undefined> {
    if (isCommit(revision)) return revision;
    const text = await readFile(this.#ref(revision), 'utf8').catch(() => '');
    return isCommit(text.trim()) ? text.trim() : undefined;
  }

  /** Remembers what a revision is. Only for later offline use, so a cache that cannot be written is no error. */
  async remember(revision: string, commit: string): Promise<void> {
    if ((await this.commitOf(revision)) === commit) return;
    const path = this.#ref(revision);
    await mkdir(dirname(path), { recursive: true })
      .then(() => writeFile(path, commit))
      .catch(() => undefined);
  }

  #ref(revision: string): string {
    return join(this.dir, 'refs', ...revision.split('/'));
  }

  /** Whether the contents are there, under whatever name. */
  async hasBlob(file: HubFile): Promise<boolean> {
    const stats = await stat(this.blob(file)).catch(() => undefined);
    return stats?.isFile() === true && stats.size === file.bytes;
  }

  /** Gives a blob its name in a snapshot. Where there are no symbolic links the snapshot gets the blob itself. */
  async link(commit: string, file: HubFile): Promise<void> {
    const path = this.path(commit, file.name);
    const blob = this.blob(file);
    const temporary = `${path}.${process.pid}.link`;
    try {
      await mkdir(dirname(path), { recursive: true });
      await unlink(temporary).catch(() => undefined);
      await symlink(relative(dirname(path), blob), temporary);
      // Replaces a link that points to nothing, and needs no luck against another process.
      await rename(temporary, path);
    } catch (cause) {
      if (!['EPERM', 'ENOTSUP', 'EOPNOTSUPP', 'ENOSYS'].includes(errno(cause) ?? ''))
        throw unwritable(path, cause);
      await rename(blob, path).catch((error) => {
        throw unwritable(path, error);
      });
    }
  }
}

export function unwritable(file: string, cause: unknown): CflowError {
  return new CflowError('WRITE_FAILED', `cannot write to the cache: ${errno(cause) ?? String(cause)}`, {
    file,
    cause,
    remedy: 'set HF_HOME to a directory that can be written, free some space, or use --no-cache',
  });
}
