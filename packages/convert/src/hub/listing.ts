/** What a repository holds at one commit. Asked through `@huggingface/hub`; what comes back is checked here. */
import { CflowError } from '@cflow/format';
import { listFiles, modelInfo } from '@huggingface/hub';
import { z } from 'zod';
import type { HubClient } from './client.js';
import { placeName } from './errors.js';
import { type HubName, isCommit, isGitOid, isSha256 } from './name.js';

/** Of the files beside the configuration; repositories have some dozens. */
const MAX_FILES = 50_000;

export interface HubFile {
  readonly name: string;
  readonly bytes: number;
  /** SHA-1 as git computes it: of the contents, or where `sha256` is given of the pointer that git holds instead. */
  readonly oid: string;
  /** Of the contents, of files that the Hub stores outside of git. */
  readonly sha256: string | undefined;
}

export interface HubListing {
  readonly commit: string;
  /** By name; only those of the top directory, since checkpoints lie there. */
  readonly files: ReadonlyMap<string, HubFile>;
}

const entrySchema = z.object({
  type: z.string(),
  path: z.string(),
  size: z.int().min(0),
  oid: z.string().refine(isGitOid),
  lfs: z.object({ oid: z.string().refine(isSha256), size: z.int().min(0) }).optional(),
});

/** @throws CflowError NOT_READABLE (status and remedy), FORMAT_INVALID (an answer that makes no sense) */
export async function listRepository(client: HubClient, name: HubName): Promise<HubListing> {
  const commit = await resolveRevision(client, name);
  const place = client.place(name.repo, name.revision);
  const files = new Map<string, HubFile>();
  const entries = listFiles({
    repo: { type: 'model', name: name.repo },
    revision: commit,
    hubUrl: client.environment.endpoint,
    fetch: client.documents(place),
  });
  try {
    for await (const entry of entries) {
      if (entry.type !== 'file') continue;
      const file = fileOf(entry, placeName(place));
      files.set(file.name, file);
      if (files.size > MAX_FILES) {
        throw new CflowError('LIMIT_EXCEEDED', `more than ${MAX_FILES} files`, { file: placeName(place) });
      }
    }
  } catch (error) {
    throw understood(error, placeName(place));
  }
  return { commit, files };
}

async function resolveRevision(client: HubClient, { repo, revision }: HubName): Promise<string> {
  const place = client.place(repo, revision);
  try {
    const { sha } = await modelInfo({
      name: repo,
      revision,
      additionalFields: ['sha'],
      hubUrl: client.environment.endpoint,
      fetch: client.documents(place),
    });
    if (typeof sha === 'string' && isCommit(sha)) return sha;
  } catch (error) {
    throw understood(error, placeName(place));
  }
  throw nonsense(placeName(place), 'the revision has no commit');
}

function fileOf(entry: unknown, place: string): HubFile {
  const parsed = entrySchema.safeParse(entry);
  if (!parsed.success) throw nonsense(place, `an entry of the listing: ${parsed.error.issues[0]?.message}`);
  const { path, size, oid, lfs } = parsed.data;
  return { name: path, bytes: lfs?.size ?? size, oid, sha256: lfs?.oid };
}

/** The library parses answers as they come: what it stumbles over is not JSON, or not what the API gives. */
function understood(error: unknown, place: string): unknown {
  if (error instanceof CflowError) return error;
  return nonsense(
    place,
    `not an answer of the Hub: ${error instanceof Error ? error.message : error}`,
    error,
  );
}

function nonsense(file: string, problem: string, cause?: unknown): CflowError {
  return new CflowError('FORMAT_INVALID', problem, {
    file,
    cause,
    remedy: 'is HF_ENDPOINT the address of a Hub?',
  });
}
