/** Commands in folders of their own: loaded when they are needed, known by name. */
import type { CommandModule } from 'yargs';
import type { Measure } from '../harness/quick.js';

export interface OptionalCommand {
  readonly command: CommandModule;
  readonly measureQuick: Measure;
}

/** A line for each folder that has a command.ts. */
const FOLDERS: Readonly<Record<string, () => Promise<unknown>>> = {
  l1d: () => import('../l1d/command.js'),
  storage: () => import('../storage/command.js'),
  overlap: () => import('../overlap/command.js'),
  cache: () => import('../cache/command.js'),
  residual: () => import('../residual/command.js'),
};

export const OPTIONAL_COMMANDS: readonly string[] = Object.keys(FOLDERS);

/** Undefined if there is no such folder. */
export async function optionalCommand(name: string): Promise<OptionalCommand | undefined> {
  // Each command knows the type of its own options; the parser needs none of them.
  return (await FOLDERS[name]?.()) as OptionalCommand | undefined;
}
