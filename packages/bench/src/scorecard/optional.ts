/** Commands in folders of their own, found by name, so that one that is missing leaves the others alone. */
import type { CommandModule } from 'yargs';
import type { Measure } from '../harness/quick.js';

export const OPTIONAL_COMMANDS = ['l1d', 'storage', 'overlap', 'cache', 'residual'] as const;

export interface OptionalCommand {
  readonly command: CommandModule;
  readonly measureQuick: Measure;
}

/** The folder's command.ts; undefined if there is none. */
export async function optionalCommand(name: string): Promise<OptionalCommand | undefined> {
  const url = new URL(`../${name}/command.js`, import.meta.url).href;
  try {
    return (await import(url)) as OptionalCommand;
  } catch (error) {
    if (
      (error as NodeJS.ErrnoException).code === 'ERR_MODULE_NOT_FOUND' &&
      String(error).includes(`${name}/command`)
    )
      return undefined;
    throw error;
  }
}
