/** What is answered: the text of cflow-run, the same whole and streamed. */
import { execFile } from 'node:child_process';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { expect, it } from 'vitest';
import type { ChatAnswer, ChatChunk } from '../src/schema/chat.js';
import type { CompletionAnswer } from '../src/schema/completions.js';
import { events, ONCE, post, serve } from './helpers.js';

const RUN = fileURLToPath(new URL('../../runtime-native/bin/cflow-run.js', import.meta.url));
const GREEDY = { model: 'stories', prompt: ONCE, temperature: 0, max_tokens: 40 };

it('a completion at temperature 0 is what cflow-run writes', async () => {
  const { url, folder } = await serve();
  const args = ['--prompt', ONCE, '--temperature', '0', '--max-tokens', '40'];
  const { stdout } = await promisify(execFile)(process.execPath, [
    RUN,
    join(folder, 'stories.cflow'),
    ...args,
  ]);
  const response = await post(`${url}/v1/completions`, GREEDY);
  const { choices, usage } = (await response.json()) as CompletionAnswer;
  expect(`${choices[0]!.text}\n`).toBe(stdout);
  expect(choices[0]!.finish_reason).toBe('length');
  expect(usage).toEqual({ prompt_tokens: 5, completion_tokens: 40, total_tokens: 45 });
});

it('a chat at temperature 0 is what cflow-run writes', async () => {
  const { url, folder } = await serve();
  const args = ['--chat', '--prompt', ONCE, '--temperature', '0', '--max-tokens', '40'];
  const { stdout } = await promisify(execFile)(process.execPath, [RUN, join(folder, 'chat.cflow'), ...args]);
  const messages = [{ role: 'user', content: ONCE }];
  const body = { model: 'chat', messages, temperature: 0, max_completion_tokens: 40 };
  const { choices } = (await (await post(`${url}/v1/chat/completions`, body)).json()) as ChatAnswer;
  expect(`${choices[0]!.message.content}\n`).toBe(stdout);
  const parts = [{ role: 'user', content: [{ type: 'text', text: ONCE }] }];
  const again = (await (
    await post(`${url}/v1/chat/completions`, { ...body, messages: parts })
  ).json()) as ChatAnswer;
  expect(again.choices).toEqual(choices);
});

const VARIED = [
  { temperature: 0 },
  { seed: 7, n: 3 },
  { seed: 7, temperature: 1.5, top_p: 0.9, n: 2, logprobs: true },
  { temperature: 0, stop: [' Lily', 'zebra'] },
  { seed: 11, frequency_penalty: 1, presence_penalty: 0.5, logit_bias: { 15: -100 } },
];

it.each(VARIED)('a completion is the same whole and streamed: %j', async ({ logprobs, ...fields }) => {
  const { url } = await serve();
  const body = { ...GREEDY, ...fields, prompt: [ONCE, 'The dog'], ...(logprobs ? { logprobs: 2 } : {}) };
  const whole = (await (await post(`${url}/v1/completions`, body)).json()) as CompletionAnswer;
  const options = { stream: true, stream_options: { include_usage: true } };
  const stream = await post(`${url}/v1/completions`, { ...body, ...options });
  expect(stream.headers.get('content-type')).toBe('text/event-stream; charset=utf-8');
  const chunks = (await events(stream)) as unknown as CompletionAnswer[];
  const joined = whole.choices.map(({ index }) => {
    const own = chunks.flatMap(({ choices }) => choices).filter((choice) => choice.index === index);
    const tokens = own.flatMap((choice) => choice.logprobs?.tokens ?? []);
    return {
      index,
      text: own.map(({ text }) => text).join(''),
      finish_reason: own.at(-1)!.finish_reason,
      logprobs:
        tokens.length === 0
          ? null
          : {
              tokens,
              token_logprobs: own.flatMap((choice) => choice.logprobs?.token_logprobs ?? []),
              top_logprobs: own.flatMap((choice) => choice.logprobs?.top_logprobs ?? []),
              text_offset: own.flatMap((choice) => choice.logprobs?.text_offset ?? []),
            },
    };
  });
  expect(joined).toEqual(whole.choices);
  expect(whole.choices).toHaveLength(2 * (fields.n ?? 1));
  expect(chunks.at(-1)).toMatchObject({ choices: [], usage: whole.usage });
  expect(chunks.slice(0, -1).every(({ usage }) => usage === null)).toBe(true);
});

it.each(VARIED)('a chat is the same whole and streamed: %j', async (fields) => {
  const { url } = await serve();
  const messages = [
    { role: 'developer', content: 'A story.' },
    { role: 'user', content: ONCE },
  ];
  const alternatives = fields.logprobs ? { top_logprobs: 2 } : {};
  const body = { model: 'chat', messages, max_tokens: 30, ...fields, ...alternatives };
  const whole = (await (await post(`${url}/v1/chat/completions`, body)).json()) as ChatAnswer;
  const stream = await post(`${url}/v1/chat/completions`, { ...body, stream: true });
  const chunks = (await events(stream)) as unknown as ChatChunk[];
  const joined = whole.choices.map(({ index }) => {
    const own = chunks.flatMap(({ choices }) => choices).filter((choice) => choice.index === index);
    expect(own[0]!.delta).toEqual({ role: 'assistant', content: '' });
    const tokens = own.flatMap((choice) => choice.logprobs?.content ?? []);
    return {
      index,
      message: {
        role: 'assistant',
        content: own.map(({ delta }) => delta.content ?? '').join(''),
        refusal: null,
      },
      logprobs: tokens.length === 0 ? null : { content: tokens, refusal: null },
      finish_reason: own.at(-1)!.finish_reason,
    };
  });
  expect(joined).toEqual(whole.choices);
  expect(chunks.some((chunk) => 'usage' in chunk)).toBe(false);
});

it('the text of log-probabilities joins to the answer', async () => {
  const { url } = await serve();
  const whole = (await (
    await post(`${url}/v1/completions`, { ...GREEDY, logprobs: 3 })
  ).json()) as CompletionAnswer;
  const { text, logprobs } = whole.choices[0]!;
  expect(logprobs!.tokens.join('')).toBe(text);
  expect(
    logprobs!.tokens.map((token, i) => text.slice(logprobs!.text_offset[i]).startsWith(token)),
  ).not.toContain(false);
  // Greedy: the token is the likeliest.
  expect(logprobs!.top_logprobs.map((top, i) => top[logprobs!.tokens[i]!])).toEqual(logprobs!.token_logprobs);
});
