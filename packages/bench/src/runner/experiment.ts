/**
 * The experiment interface and its runner. The runner owns options, the warning of a busy machine, progress,
 * interleaving, result file and output; an experiment defines what it measures.
 */

import { loadavg } from 'node:os';
import { threadBudget } from '@cflow/runtime-native';
import type { ArgumentsCamelCase, Argv, CommandModule } from 'yargs';
import { writeMessage } from '#cli-kit/output.js';
import { progress } from '#cli-kit/progress.js';
import { measuredText } from '../report/text.js';
import { inputsOf } from './files.js';
import { describeMachine } from './machine.js';
import { type Builder, print, SHARED } from './options.js';
import { throwIfInterrupted } from './resources.js';
import { type BenchResult, type Machine, type Measured, RESULT_SCHEMA, writeResult } from './result.js';

/** One experiment. `Report`: what it measures. `Args`: its own options, without the shared ones. */
interface Definition<Args, Report> {
  readonly name: string;
  /** Positional arguments as yargs writes them, e.g. `<model>`. */
  readonly positional?: string;
  readonly describe: string;
  readonly options: (y: Builder) => Argv<Args>;
  /** Whether it measures time: then a busy machine gives a warning. */
  readonly timed: boolean;
  readonly measure: (args: ArgumentsCamelCase<Args>, run: Run) => Promise<Report>;
  /** For the scorecard: a short measurement of a small model. */
  readonly quick?: (context: QuickContext, run: Run) => Promise<Report>;
  /** The report as metrics and tables, for result files, charts and the terminal. */
  readonly results: (report: Report) => Measured;
  /** Metrics that the terminal shows above the tables; none by default. */
  readonly shown?: RegExp;
  /** Replaces metrics and tables on the terminal. */
  readonly text?: (report: Report) => string;
  /** Replaces metrics and tables in `--json`. */
  readonly json?: (report: Report) => unknown;
}

/** Inputs of a quick run. */
export interface QuickContext {
  /** A .cflow or .vflow file. */
  readonly model: string;
  /** For temporary files. */
  readonly directory: string;
  /** Compute threads. */
  readonly threads: number;
  /** Whether it must finish in seconds. */
  readonly quick: boolean;
}

export interface Experiment {
  readonly name: string;
  readonly command: CommandModule;
  readonly quick: ((context: QuickContext, run?: Run) => Promise<Measured>) | undefined;
}

interface Turns<Variant, Result> {
  readonly variants: readonly Variant[];
  readonly rounds: number;
  /** For the progress line. */
  readonly name: (variant: Variant) => string;
  readonly measure: (variant: Variant, round: number) => Promise<Result>;
  /** Rounds of one variant, if fewer. */
  readonly roundsOf?: (variant: Variant) => number;
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
   * Interleaves: measures every variant once per round, so that a slow minute of the machine affects all of them.
   * @returns the results of each variant, by round
   * @throws CflowError INTERRUPTED, and errors of `measure`
   */
  async turns<Variant, Result>(turns: Turns<Variant, Result>): Promise<Result[][]> {
    const { variants, rounds, roundsOf = () => rounds } = turns;
    const results = variants.map((): Result[] => []);
    for (let round = 0; round < rounds; round++) {
      await turns.before?.(round);
      for (const [i, variant] of variants.entries()) {
        if (round >= roundsOf(variant)) continue;
        throwIfInterrupted();
        this.step(`round ${round + 1} of ${roundsOf(variant)}: ${turns.name(variant)}`);
        results[i]!.push(await turns.measure(variant, round));
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
 * Warns on a terminal that the machine is busy; result files always record the load.
 * @param load average of the last minute; includes the load of an earlier measurement
 */
export async function warnIfBusy(load = loadavg()[0]!, terminal = process.stderr.isTTY): Promise<void> {
  const { threads } = await threadBudget();
  if (load <= threads || !terminal) return;
  await writeMessage(
    `the load average is ${load.toFixed(1)} on ${threads} cores: other work slows engines whose threads spin at barriers\n`,
  );
}

/** Arguments that do not affect the measurement. */
const NOT_OPTIONS = new Set(['_', '$0', 'json', 'save', 'quiet']);

/** The content of a result file. Measures the machine unless given. Omits kebab-case duplicates of options. */
export async function resultOf(
  command: string,
  args: Readonly<Record<string, unknown>>,
  measured: Measured,
  machine?: Machine,
): Promise<BenchResult> {
  const named = Object.entries(args).filter(
    ([key, value]) => !NOT_OPTIONS.has(key) && !key.includes('-') && value !== undefined,
  );
  return {
    schema: RESULT_SCHEMA,
    command,
    machine: machine ?? (await describeMachine()),
    date: new Date().toISOString(),
    options: Object.fromEntries(named.map(([key, value]) => [key, withoutFolders(value)])),
    ...measured,
  };
}

/** Result files are published: they contain file names without directories. */
function withoutFolders(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(withoutFolders);
  return typeof value === 'string' && value.includes('/') ? value.split('/').at(-1) : value;
}

/** Writes the result to `args.save`, if set. */
export async function save(
  command: string,
  args: Readonly<Record<string, unknown>>,
  measured: Measured,
): Promise<void> {
  if (typeof args.save !== 'string') return;
  await writeResult(args.save, await resultOf(command, args, measured), await inputsOf(args));
}
