/** The command line of every command: strict options, suggestions, `-h`, `-V`, exit codes. */
import { exitCodeHelp } from '@cflow/format/internal/errors.js';
import yargs, { type Argv } from 'yargs';
import { writeOutput } from './output.js';
import { WIDTH } from './text.js';
import { usageError } from './usage.js';

/**
 * A parser to which a command adds its usage, options and positional arguments.
 * @param example a line to type, with which the help ends
 */
export function commandLine(name: string, version: string, example: string): Argv {
  const parser = yargs();
  return (
    parser
      .scriptName(name)
      .locale('en')
      // Of an option that is given twice, the last value counts.
      .parserConfiguration({ 'duplicate-arguments-array': false })
      .strict()
      .version(version)
      .alias({ h: 'help', V: 'version' })
      .epilogue(`${exitCodeHelp()}\n\n${exampleHelp(example)}`)
      .wrap(WIDTH)
      .exitProcess(false)
      .fail((message, error) => {
        // The parser's own errors are of the command line; any other is of a handler.
        if (error && error.name !== 'YError') throw error;
        throw usageError(name, message ?? error?.message, optionNames(parser));
      })
  );
}

/**
 * The arguments; undefined once help or version is printed, which is all that was asked for.
 * @throws CflowError USAGE
 */
export async function parseArguments<T>(
  parser: Argv<T>,
  argv: readonly string[],
  print: (text: string) => Promise<unknown> = writeOutput,
) {
  let shown = '';
  const parsed = await parser.parseAsync([...argv], {}, (_error, _argv, output) => {
    shown = output;
  });
  if (!shown) return parsed;
  await print(`${shown}\n`);
  return undefined;
}

/** The end of a help. */
export const exampleHelp = (example: string) => `Example:\n  ${example}`;

/** Long options, without dashes. The types of yargs leave `getOptions` out. */
function optionNames(parser: Argv): string[] {
  const { key } = (parser as unknown as { getOptions(): { key: object } }).getOptions();
  return Object.keys(key).filter((name) => name.length > 1);
}
