/** Names on the Hub: `hf:org/name[@revision]`. They become parts of URLs and of paths, so they are checked here. */
import { CflowError } from '@cflow/format';

const PREFIX = 'hf:';
const DEFAULT_REVISION = 'main';
/** By the Hub's own rules; names from before organizations have one part. */
const REPO = /^[A-Za-z0-9][\w.-]{0,95}(?:\/[A-Za-z0-9][\w.-]{0,95})?$/;
/** What git allows in a branch or tag, of the characters that need no care anywhere. */
const REVISION_PART = /^[\w+=#%,!$&()][\w.+=#%,!$&()-]*$/;
const COMMIT = /^[0-9a-f]{40}$/;
const GIT_OID = /^[0-9a-f]{40}$/;
const SHA256 = /^[0-9a-f]{64}$/;

export interface HubName {
  readonly repo: string;
  /** Branch, tag, `refs/pr/N` or commit. */
  readonly revision: string;
}

export function isHubName(source: string): boolean {
  return source.startsWith(PREFIX);
}

/** Whether a name that is no path here has the form organization/name of a repository on the Hub. */
export function looksLikeRepository(name: string): boolean {
  return /^[^./]/.test(name) && name.split('/').length === 2 && REPO.test(name);
}

export function hubRemedy(name: string): string {
  return `for a repository on the Hugging Face Hub: cflow-convert hf:${name} ${name.split('/')[1]}.cflow`;
}

/** @throws CflowError USAGE for what cannot be a repository or a revision */
export function parseHubName(source: string): HubName {
  const text = source.slice(PREFIX.length);
  const at = text.indexOf('@');
  const repo = at < 0 ? text : text.slice(0, at);
  const revision = at < 0 ? DEFAULT_REVISION : text.slice(at + 1);
  const odd = /--|\.\.|[.-](?:\/|$)|\.git$/;
  if (!REPO.test(repo) || odd.test(repo)) {
    throw new CflowError('USAGE', `${JSON.stringify(repo)} is not the name of a repository`, {
      file: source,
      field: 'source',
      value: repo,
      remedy: 'hf:organization/name, as in the address of its page; ./hf:… for a directory of that name',
    });
  }
  if (!isRevision(revision)) {
    throw new CflowError('USAGE', `${JSON.stringify(revision)} is not the name of a revision`, {
      file: source,
      field: 'revision',
      value: revision,
      remedy: 'a branch, tag or commit; refs/pr/1 for a pull request',
    });
  }
  return { repo, revision };
}

function isRevision(revision: string): boolean {
  if (revision.length > 255) return false;
  return revision.split('/').every((part) => REVISION_PART.test(part) && !part.includes('..'));
}

export function isCommit(revision: string): boolean {
  return COMMIT.test(revision);
}

/** An id from a server, before it becomes the name of a file. */
export function isGitOid(text: string): boolean {
  return GIT_OID.test(text);
}

export function isSha256(text: string): boolean {
  return SHA256.test(text);
}
