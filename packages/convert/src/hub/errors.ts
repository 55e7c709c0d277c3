/** What can go wrong between here and the Hub, in words that say what to do. */
import { CflowError } from '@cflow/format';
import type { Response } from 'undici';

/** What a request is about. */
export interface HubPlace {
  readonly endpoint: string;
  readonly repo: string;
  readonly revision: string;
  /** Absent for questions about the repository. */
  readonly file?: string;
  readonly hasToken: boolean;
}

export function placeName({ repo, revision, file }: HubPlace): string {
  return `hf:${repo}@${revision}${file ? `: ${file}` : ''}`;
}

/** A failure that another attempt may mend. */
export class Transient extends Error {
  /** As the server asks. */
  readonly waitMs: number | undefined;
  /** Of the system, where no connection came about, e.g. `ENOTFOUND`. */
  readonly code: string | undefined;

  constructor(
    problem: string,
    options: { waitMs?: number | undefined; code?: string; cause?: unknown } = {},
  ) {
    super(problem, { cause: options.cause });
    this.waitMs = options.waitMs;
    this.code = options.code;
  }
}

type Remedy = (place: HubPlace) => string;
const page: Remedy = ({ endpoint, repo }) => `${endpoint}/${repo}`;
const REMEDIES: Readonly<Record<number, Remedy>> = {
  401: (place) =>
    place.hasToken
      ? `HF_TOKEN is not accepted, or there is no such repository; see ${page(place)}`
      : 'check the name; private and gated repositories need HF_TOKEN',
  403: (place) =>
    place.hasToken
      ? `accept the conditions at ${page(place)}, or use a token that may read it`
      : `a gated repository: accept the conditions at ${page(place)} and set HF_TOKEN`,
  404: (place) =>
    place.file ? 'the repository has no such file' : `no such repository or revision; see ${page(place)}`,
};

/** The Hub says more precisely than by the status what it does not find. */
const NOT_FOUND: Readonly<Record<string, string>> = {
  RepoNotFound: 'no such repository',
  RevisionNotFound: 'no such revision',
  EntryNotFound: 'no such file',
  GatedRepo: 'a gated repository',
};

/** For a status that no further attempt changes. */
export function statusError(place: HubPlace, response: Response): CflowError {
  const { status, statusText, headers } = response;
  const code = headers.get('x-error-code') ?? '';
  const reason = Object.hasOwn(NOT_FOUND, code) ? `, ${NOT_FOUND[code]}` : '';
  const remedy = Object.hasOwn(REMEDIES, status) ? REMEDIES[status]!(place) : `see ${page(place)}`;
  return new CflowError('NOT_READABLE', `the server answers ${`${status} ${statusText}`.trim()}${reason}`, {
    file: placeName(place),
    value: status,
    remedy,
  });
}

/** For a file that is not, or no longer, what the listing says. */
export function changedError(place: HubPlace, problem: string): CflowError {
  return new CflowError('VERIFY_FAILED', problem, {
    file: placeName(place),
    remedy: 'convert again; if it stays so, the server or something on the way to it is at fault',
  });
}
