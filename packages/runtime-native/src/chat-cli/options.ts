/** The options of cflow-chat. */
import { CflowError } from '@cflow/format/internal/errors.js';
import { commandLine } from '#cli-kit/command.js';

/** Tokens of an answer at most, unless --max-tokens says otherwise. */
export const ANSWER_TOKENS = 2048;

const number = (describe: string) => ({ type: 'number', requiresArg: true, describe }) as const;
const text = (describe: string) => ({ type: 'string', requiresArg: true, describe }) as const;

const OPTIONS = {
  system: text('system message'),
  'template-option': {
    ...text('template variable, e.g. enable_thinking=false; repeatable'),
    array: true,
    nargs: 1,
  },
  'max-tokens': number(`tokens of an answer at most [default: ${ANSWER_TOKENS}]`),
  temperature: number('sampling temperature; 0 = greedy'),
  'top-k': number('keep the k most likely tokens; 0 = all'),
  'top-p': number('nucleus sampling: total probability to keep; 1 = all'),
  'min-p': number('minimum probability, relative to the largest; 0 = all'),
  'repetition-penalty': number('divides the logits of tokens in prompt and answer'),
  seed: number('0 to 4294967295; random if absent'),
  'json-schema': text('file or text with a JSON schema that every answer must satisfy'),
  grammar: text('file with EBNF (GBNF) that every answer must follow'),
  load: text('continue a conversation that /save wrote'),
  history: {
    type: 'boolean',
    default: true,
    describe: 'keep what is typed, for the arrow keys (--no-history)',
  },
  json: { type: 'boolean', default: false, describe: 'print each answer as one line of JSON' },
  dtype: text('of a checkpoint that is converted first [default: q4_0]'),
  reconvert: { type: 'boolean', default: false, describe: 'convert again what was converted before' },
  threads: number('threads that compute [default: CPUs allowed]'),
  memory: text('what the process may use, e.g. 2GiB [default: most of what is available]'),
  context: number('positions to keep room for within --memory [default: 2048]'),
} as const;

/** The parser of the command line. */
export function parser(version: string) {
  return commandLine('cflow-chat', version, 'cflow-chat model.cflow --system "Be brief."')
    .usage('$0 <model>')
    .command('$0 <model>', 'Chat with a model, at a terminal or line by line from stdin', (y) =>
      y.positional('model', {
        type: 'string',
        demandOption: true,
        describe: 'a .cflow or .vflow file; or what is converted first: a directory, a .gguf, hf:ORG/NAME',
      }),
    )
    .options(OPTIONS);
}

/** The command line, parsed. */
export type ChatArguments = Awaited<ReturnType<ReturnType<typeof parser>['parse']>> & { model: string };

const NUMBERS = Object.entries(OPTIONS).filter(([, { type }]) => type === 'number');

/** @throws CflowError USAGE for what the parser lets through */
export function checkChatArguments(args: ChatArguments): void {
  const wrong = NUMBERS.find(([name]) => Number.isNaN(args[name]));
  if (wrong) throw new CflowError('USAGE', 'not a number', { field: `--${wrong[0]}` });
}
