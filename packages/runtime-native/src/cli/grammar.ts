/** The grammar that a command line asks for. */
import { CflowError } from '@cflow/format';
import { readTextFile } from '@cflow/format/node';
import type { GrammarSpec } from '../grammar/constraint.js';

/** Options that name a grammar. */
export interface GrammarArguments {
  readonly jsonSchema?: string | undefined;
  readonly grammar?: string | undefined;
}

/** The grammar of --json-schema or --grammar; undefined without either. @throws CflowError USAGE, NOT_READABLE */
export async function grammarOption({
  jsonSchema,
  grammar,
}: GrammarArguments): Promise<GrammarSpec | undefined> {
  if (jsonSchema !== undefined && grammar !== undefined)
    throw new CflowError('USAGE', 'an answer follows one grammar', {
      field: '--grammar',
      remedy: 'leave out --json-schema or --grammar',
    });
  if (grammar !== undefined) return { ebnf: await readTextFile(grammar) };
  if (jsonSchema === undefined) return undefined;
  const inline = /^\s*(?:\{|true\s*$|false\s*$)/.test(jsonSchema);
  return {
    jsonSchema: parsed(inline ? jsonSchema : await readTextFile(jsonSchema), inline ? undefined : jsonSchema),
  };
}

function parsed(json: string, file: string | undefined): unknown {
  try {
    return JSON.parse(json);
  } catch (cause) {
    const problem = `not JSON: ${(cause as Error).message}`;
    throw new CflowError('USAGE', problem, { file, field: '--json-schema', cause });
  }
}
