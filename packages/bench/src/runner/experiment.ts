/**
 * What an experiment is, and the one way in which all of them run: options, busy warning, progress, turns, result file
 * and output are the runner's; an experiment says what it measures.
 */
import { loadavg } from 'node:os';
import { writeMessage } from '@cflow/format/node';
import { threadBudget } from '@cflow/runtime-native';
import type { ArgumentsCamelCase, Argv, CommandModule } from 'yargs';
import { measuredText } from '../report/text.js';
import { inputsOf } from './files.js';
import { describeMachine } from './machine.js';
import { type Builder, print, SHARED } from './options.js';
import { progress } from './progress.js';
import { throwIfInterrupted } from './resources.js';
import { type BenchResult, type Measured, RESULT_SCHEMA, writeResult } from './result.js';

/** One experiment. `Report` is what it measures, `Args` its options without those of every experiment. */
interface Definition<Args, Report> {
  readonly name: string;
  /** Positional arguments as yargs writes them, e.g. `<model>`. */
  readonly positional?: string;
  readonly describe: string;
  readonly options: (y: Builder) => Argv<Args>;
  /** Whether it measures time, which other work on the machine falsifies. */
  readonly timed: boolean;
  readonly measure: (args: ArgumentsCamelCase<Args>, run: Run) => Promise<Report>;
  /** For the scorecard: the same on a small model, in seconds. */
  readonly quick?: (context: QuickContext, run: Run) => Promise<Report>;
  /** The report as metrics and tables, for result files, charts and, unless told otherwise, the terminal. */
  readonly results: (report: Report) => Measured;
  /** Metrics that the terminal shows above the tables; none by default. */
  readonly shown?: RegExp;
  /** What the terminal shows in place of metrics and tables. */
  readonly text?: (report: Report) => string;
  /** What `--json` prints in place of metrics and tables. */
  readonly json?: (report: Report) => unknown;
}

/** What the scorecard gives an experiment. */
export interface QuickContext {
  /** A .cflow or .vflow file. */
  readonly model: string;
  /** For temporary files. */
  readonly directory: string;
  /** Compute threads. */
  readonly threads: number;
  /** Whether it must end within seconds. */
  readonly quick: boolean;
}

export interface Experiment {
  readonly name: string;
  readonly command: CommandModule;
  readonly quick: ((context: QuickContext, run?: Run) => Promise<Measured>) | undefined;
}

interface Turns<Subject, Result> {
  readonly subjects: readonly Subject[];
  readonly rounds: number;
  /** For the progress line. */
  readonly name: (subject: Subject) => string;
  readonly measure: (subject: Subject, round: number) => Promise<Result>;
  /** Rounds of one subject, where they are fewer. */
  readonly roundsOf?: (subject: Subject) => number;
  /** Before each round, e.g. the speed of the machine at that time. */
  readonly before?: (round: number) => Promise<void>;
}

/** One run of an experiment. */
export class Run {
  /** Shows on the progress line what is being measured. */
  readonly step: (text: string) => void;

  constructor(step: (text: string) => void = () => undefined) {
    this.step = step;
  }

  /** The same run, its steps prefixed. */
  within(name: string): Run {
    return new Run((text) => this.step(`${name}: ${text}`));
  }

  /**
   * Interleaves: every subject is measured once in each round, so that a slow minute of the machine meets all of them.
   * @returns the results of each subject, by round
   * @throws CflowError INTERRUPTED; else as `measure` does
   */
  async turns<Subject, Result>(turns: Turns<Subject, Result>): Promise<Result[][]> {
    const { subjects, rounds, roundsOf = () => rounds } = turns;
    const results = subjects.map((): Result[] => []);
    for (let round = 0; round < rounds; round++) {
      await turns.before?.(round);
      for (const [i, subject] of subjects.entries()) {
        if (round >= roundsOf(subject)) continue;
        throwIfInterrupted();
        this.step(`round ${round + 1} of ${roundsOf(subject)}: ${turns.name(subject)}`);
        results[i]!.push(await turns.measure(subject, round));
      }
    }
    return results;
  }
}

export function experiment<Args, Report>(definition: Definition<Args, Report>): Experiment {
  const { name, positional = '', describe, options, measure, quick, results } = definition;
  const command: CommandModule<object, Args & Saved> = {
    command: `${name} ${positional}`.trim(),
    describe,
    builder: (y) => options(y as Builder).option('save', SHARED.save) as Argv<Args & Saved>,
    async handler(args) {
      if (definition.timed) await warnIfBusy();
      const line = progress(args.json === true);
      const report = await measure(args as ArgumentsCamelCase<Args>, new Run(line.step)).finally(line.stop);
      const measured = results(report);
      await save(name, args, measured);
      await print(args, definition.json?.(report) ?? measured, () => textOf(definition, report, measured));
    },
  };
  return {
    name,
    command: command as CommandModule,
    quick: quick && (async (context, run = new Run()) => results(await quick(context, run))),
  };
}

interface Saved {
  readonly save: string | undefined;
}

function textOf<Report>(
  { text, shown }: Pick<Definition<never, Report>, 'text' | 'shown'>,
  report: Report,
  { metrics, tables }: Measured,
): string {
  if (text) return text(report);
  if (!tables) return measuredText({ metrics });
  return measuredText({ metrics: metrics.filter(({ name }) => shown?.test(name)), tables });
}

/**
 * Warns on a terminal that other work falsifies times; result files hold the load in any case.
 * @param load average of the last minute, which also holds what an earlier measurement has left of it
 */
export async function warnIfBusy(load = loadavg()[0]!, terminal = process.stderr.isTTY): Promise<void> {
  const { threads } = await threadBudget();
  if (load <= threads || !terminal) return;
  await writeMessage(
    `the load average is ${load.toFixed(1)} on ${threads} cores: other work slows engines whose threads spin at barriers\n`,
  );
}

/** Arguments that say nothing of the measurement. */
const NOT_OPTIONS = new Set(['_', '$0', 'json', 'save', 'quiet']);

/** The result as a file holds it, with this machine measured now. Kebab-case doubles of options are left out. */
export async function resultOf(
  command: string,
  args: Readonly<Record<string, unknown>>,
  measured: Measured,
): Promise<BenchResult> {
  const named = Object.entries(args).filter(
    ([key, value]) => !NOT_OPTIONS.has(key) && !key.includes('-') && value !== undefined,
  );
  return {
    schema: RESULT_SCHEMA,
    command,
    machine: await describeMachine(),
    date: new Date().toISOString(),
    options: Object.fromEntries(named.map(([key, value]) => [key, withoutFolders(value)])),
    ...measured,
  };
}

/** Result files are published: they hold names of files, not where they were. */
function withoutFolders(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(withoutFolders);
  return typeof value === 'string' && value.includes('/') ? value.split('/').at(-1) : value;
}

/** Writes what was measured to `args.save`, if that is set. */
export async function save(
  command: string,
  args: Readonly<Record<string, unknown>>,
  measured: Measured,
): Promise<void> {
  if (typeof args.save !== 'string') return;
  await writeResult(args.save, await resultOf(command, args, measured), await inputsOf(args));
}
