/** Conversations whose answers have reasoning and calls of tools; a grammar makes the model write them. */
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { Chat, type ChatOptions } from '../src/chat/chat.js';
import { Model } from '../src/model.js';
import { CHARACTERS } from './character-tokenizer.js';
import { goldenFile } from './model-file.js';

/** In the manner of Qwen3; `[` and `]` are tokens that the tokenizer calls special. */
const TEMPLATE = `{%- for m in messages %}({{ m.role }}:
{%- if m.content is string %}{{ m.content }}{% endif %}
{%- for c in m.tool_calls or [] %}<tool_call>{"name":"{{ c.function.name }}","arguments":{{ c.function.arguments | tojson }}}</tool_call>{% endfor %}){% endfor %}
{%- if add_generation_prompt %}(assistant:{% if enable_thinking is defined and enable_thinking %}<think>{% endif %}{% endif %}`;

let directory: string;
let model: Model;
beforeAll(async () => {
  directory = await mkdtemp(join(tmpdir(), 'cflow-chat-answers-'));
  const added = [...CHARACTERS.added_tokens];
  const special = { id: 94, content: '<tool_call>', special: true };
  const vocab = Object.fromEntries(Object.entries(CHARACTERS.model.vocab).filter(([, id]) => id !== 94));
  const tokenizer = {
    tokenizerJson: JSON.stringify({
      ...CHARACTERS,
      added_tokens: [...added, special],
      model: { ...CHARACTERS.model, vocab: { ...vocab, '<tool_call>': 94 } },
    }),
    tokenizerConfigJson: JSON.stringify({ eos_token: '</s>' }),
    vocabSize: 97,
    chatTemplate: TEMPLATE,
  };
  const file = join(directory, 'model.cflow');
  await writeFile(file, (await goldenFile('arch4', { tokenizer })).bytes);
  model = await Model.open(file, { engine: 'reference' });
});
afterAll(async () => {
  await model.close();
  await rm(directory, { recursive: true });
});

async function reply(options: ChatOptions, regex: string) {
  const chat = new Chat(model, options);
  const parts = [];
  for await (const token of chat.reply('hi', { grammar: { regex }, maxTokens: 60, seed: 1 }))
    parts.push(...token.parts);
  return { chat, parts };
}

it('keeps reasoning apart from the answer, where the prompt opened it and where the model does', async () => {
  const opened = await reply({ variables: { enable_thinking: true } }, 'ab</think>cd');
  expect(opened.chat.messages.at(-1)).toEqual({ role: 'assistant', content: 'cd', reasoning_content: 'ab' });
  const own = await reply({}, '<think>ab</think>cd');
  expect(own.chat.messages.at(-1)).toEqual({ role: 'assistant', content: 'cd', reasoning_content: 'ab' });
  expect(own.parts.map((part) => 'text' in part && part.text).join('')).toBe('abcd');
});

it('gives calls of tools only where there are tools, and renders them again with their results', async () => {
  const call = '<tool_call>{"name":"f"}</tool_call>';
  const regex = call.replace(/[{}]/g, '\\$&');
  const without = await reply({}, regex);
  expect(without.chat.messages.at(-1)).toEqual({ role: 'assistant', content: call });
  const { chat } = await reply({ variables: { tools: [{ type: 'function' }] } }, regex);
  const id = expect.stringMatching(/^\w{9}$/);
  expect(chat.messages.at(-1)).toEqual({
    role: 'assistant',
    content: '',
    tool_calls: [{ id, type: 'function', function: { name: 'f', arguments: '{}' } }],
  });
  chat.add({ role: 'tool', content: '7' });
  const ids = await chat.prompt(undefined);
  expect(model.tokenizer!.decode(ids)).toBe(
    '(user:hi)(assistant:{"name":"f","arguments":{}}</tool_call>)(tool:7)(assistant:',
  );
});

it('sees markers that are special tokens, which texts lack', async () => {
  const chat = new Chat(model, { variables: { tools: [{ type: 'function' }] } });
  for await (const token of chat.reply('hi', { logitBias: { 94: 100 }, temperature: 0, maxTokens: 1 }))
    expect([token.id, token.text]).toEqual([94, '']);
  expect(chat.messages.at(-1)!.content).toBe('<tool_call>');
});

it('keeps an answer that was interrupted as far as it came', async () => {
  const chat = new Chat(model);
  const abort = new AbortController();
  const answering = async () => {
    let tokens = 0;
    for await (const _ of chat.reply('hi', {
      grammar: { regex: 'a{10}' },
      maxTokens: 20,
      signal: abort.signal,
    }))
      if (++tokens === 3) abort.abort();
  };
  await expect(answering()).rejects.toThrow(expect.objectContaining({ code: 'INTERRUPTED' }));
  expect(chat.messages).toEqual([
    { role: 'user', content: 'hi' },
    { role: 'assistant', content: 'aaa' },
  ]);
  abort.abort();
  const late = chat.reply('more', { signal: abort.signal }).next();
  await expect(late).rejects.toThrow(expect.objectContaining({ code: 'INTERRUPTED' }));
  expect(chat.messages).toHaveLength(2);
});

it('begins again, with another system message and other variables', async () => {
  const { chat } = await reply({ system: 'x' }, 'a');
  expect(chat.messages.map(({ content }) => content)).toEqual(['x', 'hi', 'a']);
  chat.setSystem('y');
  expect(chat.messages.map(({ content }) => content)).toEqual(['y', 'hi', 'a']);
  chat.setVariables({ enable_thinking: true });
  chat.reset();
  expect(model.tokenizer!.decode(await chat.prompt([{ type: 'text', text: 'q' }]))).toBe(
    '(system:y)(user:q)(assistant:<think>',
  );
  chat.setSystem(undefined);
  expect(chat.messages).toEqual([]);
});
