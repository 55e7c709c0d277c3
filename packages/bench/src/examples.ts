/** A line to type for each command: what its help ends with. */

import type { Argv, CommandModule } from 'yargs';
import { exampleHelp } from '#cli-kit/command.js';

/** By the command's name. */
export const EXAMPLES: Readonly<Record<string, string>> = {
  synth: 'cflow-bench synth model.cflow --format cflow --geometry olmoe --bytes 2GB',
  decode: 'cflow-bench decode model.cflow --threads 4 --runs 5',
  prefill: 'cflow-bench prefill model.cflow',
  peers: 'cflow-bench peers --save peers.json',
  quality: 'cflow-bench quality checkpoint/ texts.txt',
  convert: 'cflow-bench convert checkpoint/',
  storage: 'cflow-bench storage model.cflow',
  overlap: 'cflow-bench overlap model.cflow --memory 2GiB',
  cache: 'cflow-bench cache model.trace',
  capped: 'cflow-bench capped model.cflow --memory 2GiB',
  'critical-path': 'cflow-bench critical-path --json',
  structure: 'cflow-bench structure model.cflow',
  l1d: 'cflow-bench l1d',
  residual: 'cflow-bench residual model.cflow',
  scorecard: 'cflow-bench scorecard --save scorecard.json',
  compare: 'cflow-bench compare before.json after.json --threshold 5%',
  report: 'cflow-bench report decode.json peers.json --output report.html',
};

/** The command with its example at the end of its help. */
export function withExample(command: CommandModule): CommandModule {
  const { command: usage, builder } = command;
  const example = EXAMPLES[String(usage).split(' ')[0]!];
  if (example === undefined || typeof builder !== 'function') throw new Error(`${usage} has no example`);
  return { ...command, builder: (y: Argv) => (builder(y) as Argv).epilogue(exampleHelp(example)) };
}
