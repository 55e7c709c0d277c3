/** Formats of answers: one row each. */
import { HARMONY_MARKERS, HarmonyParser } from './harmony.js';
import type { AnswerParser } from './parts.js';
import { type Section, SectionsParser } from './sections.js';
import {
  deepseekCalls,
  jsonCalls,
  mistralCalls,
  type ParseCalls,
  pythonCalls,
  taggedCalls,
} from './tool-calls.js';

/** Calls of tools between markers. */
interface CallSection extends Section {
  readonly calls: ParseCalls;
}

interface Row {
  readonly name: string;
  /** A text that only chat templates of this format have. */
  readonly sign: RegExp;
  readonly calls: readonly CallSection[];
  /** Markers within calls. */
  readonly inner?: readonly string[];
}

const ROWS: readonly Row[] = [
  {
    name: 'deepseek',
    sign: /<｜tool▁calls▁begin｜>/,
    calls: [{ open: '<｜tool▁calls▁begin｜>', close: '<｜tool▁calls▁end｜>', calls: deepseekCalls }],
    inner: ['<｜tool▁call▁begin｜>', '<｜tool▁sep｜>', '<｜tool▁call▁end｜>'],
  },
  {
    name: 'mistral',
    sign: /\[TOOL_CALLS\]/,
    calls: [{ open: '[TOOL_CALLS]', calls: mistralCalls }],
    inner: ['[CALL_ID]', '[ARGS]'],
  },
  {
    name: 'hermes',
    sign: /<tool_call>/,
    calls: [{ open: '<tool_call>', close: '</tool_call>', calls: taggedCalls }],
  },
  {
    name: 'llama3',
    sign: /<\|python_tag\|>|"parameters": /,
    calls: [{ open: '<|python_tag|>', calls: pythonCalls }, { calls: jsonCalls }],
  },
];

/** Reasoning between markers, as templates name them. */
const REASONING: readonly { readonly open: string; readonly close: string }[] = [
  { open: '<think>', close: '</think>' },
  { open: '[THINK]', close: '[/THINK]' },
];

/** What a parser is made for. */
export interface AnswerContext {
  /** The end of the prompt: it may have begun the reasoning. */
  readonly prompt?: string | undefined;
  /** Whether the model was given tools; otherwise nothing is a call. */
  readonly tools?: boolean | undefined;
}

/** How the answers of a model are to be read. */
export interface AnswerFormat {
  /** A row's name, `harmony`, or `plain` for a model without calls of tools. */
  readonly name: string;
  /** Texts that parsers look for. A tokenizer may have them as special tokens, which its text lacks. */
  readonly markers: ReadonlySet<string>;
  /** A parser for one answer. */
  readonly parser: (context?: AnswerContext) => AnswerParser;
}

/** The format that a chat template implies. */
export function answerFormat(template: string): AnswerFormat {
  if (template.includes('<|channel|>'))
    return { name: 'harmony', markers: HARMONY_MARKERS, parser: () => new HarmonyParser() };
  const row = ROWS.find(({ sign }) => sign.test(template));
  const reasoning = REASONING.filter(
    ({ open, close }) => template.includes(open) || template.includes(close),
  );
  const sections: readonly Section[] = [...reasoning, ...(row?.calls ?? [])];
  const markers = [...sections.flatMap(({ open, close }) => [open, close]), ...(row?.inner ?? [])];
  return {
    name: row?.name ?? 'plain',
    markers: new Set(markers.filter((marker) => marker !== undefined)),
    parser: ({ prompt = '', tools = false } = {}) =>
      new SectionsParser({
        sections: tools ? sections : reasoning,
        opened: reasoning.find(({ open }) => prompt.trimEnd().endsWith(open)),
      }),
  };
}
