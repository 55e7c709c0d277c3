/** cflow-inspect: the shell around the pure parts, which are loaded once the arguments are parsed. */
import { crc32 } from 'node:zlib';
import { CflowError } from '@cflow/format/internal/errors.js';
import { openFileSource, packageVersion } from '@cflow/format/node';
import { commandLine, parseArguments } from '#cli-kit/command.js';
import { runCommand, writeMessage, writeOutput } from '#cli-kit/output.js';
import { plural } from '#cli-kit/text.js';
import { refuseHubName, usageError } from '#cli-kit/usage.js';
import type { InspectRequest } from './inspect.js';
import { openRemoteSource, remoteUrl } from './remote.js';
import type { Section } from './render.js';
import type { InspectReport } from './schema.js';

const NAME = 'cflow-inspect';

/** Where text goes; tests collect it. */
export interface Io {
  out(text: string): Promise<void>;
  err(text: string): Promise<void>;
}

const processIo: Io = {
  out: async (text) => void (await writeOutput(text)),
  err: writeMessage,
};

const OPTIONS = {
  json: { type: 'boolean', describe: 'one JSON document; tiles, verify and stats only if asked for' },
  layers: { type: 'boolean', describe: 'where the streams of each layer lie' },
  tiles: { type: 'number', requiresArg: true, describe: 'the first N tile headers of each stream' },
  experts: { type: 'boolean', describe: 'the expert tables' },
  plan: { type: 'boolean', describe: 'the execution plan, transfers overlapped' },
  'critical-path': { type: 'boolean', describe: 'bytes on the critical path, layer by layer' },
  verify: { type: 'boolean', describe: 'check every region, tile header, padding byte and checksum' },
  stats: { type: 'boolean', describe: 'statistics of each tensor; reads all weights' },
} as const;

interface Request extends InspectRequest {
  readonly path: string;
  readonly json: boolean;
}
const SECTION_FLAGS: Record<Exclude<Section, 'summary'>, string> = {
  layers: 'layers',
  experts: 'experts',
  tiles: 'tiles',
  plan: 'plan',
  criticalPath: 'critical-path',
  stats: 'stats',
  verify: 'verify',
};

const parser = () =>
  commandLine(NAME, packageVersion(import.meta.url), `${NAME} model.cflow --verify`)
    .command('$0 <file>', 'Explains a .cflow or .vflow file; without options, a summary.', (command) =>
      command.positional('file', {
        type: 'string',
        demandOption: true,
        describe: 'a .cflow or .vflow file: a path, https://…, or hf:org/name/file',
      }),
    )
    .options(OPTIONS);

function toRequest(args: Record<string, unknown>): Request {
  const { tiles } = args;
  if (tiles !== undefined && !(Number.isSafeInteger(tiles) && (tiles as number) >= 1)) {
    throw usageError(NAME, `--tiles must be one whole number of at least 1, got ${String(tiles)}`);
  }
  const sections = (Object.keys(SECTION_FLAGS) as (keyof typeof SECTION_FLAGS)[]).filter(
    (section) => args[SECTION_FLAGS[section]],
  );
  const json = Boolean(args.json);
  return {
    path: String(args.file),
    json,
    sections: sections.length || json ? sections : ['summary'],
    ...(tiles === undefined ? {} : { tiles: tiles as number }),
  };
}

async function run(argv: readonly string[], io: Io): Promise<void> {
  const args = await parseArguments(parser(), argv, io.out);
  if (!args) return;
  const request = toRequest(args);
  if (remoteUrl(request.path) === undefined) refuseHubName(request.path);
  await show(request, io);
}

async function show(request: Request, io: Io): Promise<void> {
  const [{ inspect }, { render }] = await Promise.all([import('./inspect.js'), import('./render.js')]);
  const url = remoteUrl(request.path);
  const source =
    url === undefined ? await openFileSource(request.path) : await openRemoteSource(url, request.path);
  try {
    const wanted = request.json ? [...request.sections, 'plan' as const] : request.sections;
    const report = await inspect(
      source,
      { ...request, sections: wanted },
      { crc32, documents: url === undefined },
    );
    await io.out(
      request.json ? `${JSON.stringify(report, null, 2)}\n` : render(report, shown(report, request)),
    );
    requireVerified(report);
  } finally {
    await source.close();
  }
}

/** Statistics of a damaged file are not computed, so there is nothing to show of them. */
function shown({ stats }: InspectReport, { sections }: Request): readonly Section[] {
  return sections.filter((section) => section !== 'stats' || stats);
}

function requireVerified({ verify, file }: InspectReport): void {
  if (!verify || verify.ok) return;
  const { faults } = verify;
  const [first] = faults;
  throw new CflowError('VERIFY_FAILED', `${plural(faults.length, 'fault')}, the first in ${first!.region}`, {
    file: file.name,
    offset: first!.offset,
    remedy: 'the file is damaged; copy or convert it again',
  });
}

/** Runs the command; returns its exit code. Errors are one line on stderr. */
export function main(argv: string[], io: Io = processIo): Promise<number> {
  const work = async () => {
    await run(argv, io);
    return 0;
  };
  return runCommand(NAME, work, io.err);
}
