/** Official clients of OpenAI's API against the server. */
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { HumanMessage } from '@langchain/core/messages';
import { ChatOpenAI } from '@langchain/openai';
import { generateText, streamText } from 'ai';
import OpenAI from 'openai';
import { describe, expect, it } from 'vitest';
import { ONCE, type Running, serve, until } from './helpers.js';

const KEY = 'a-key';
const CHAT = {
  model: 'chat',
  messages: [{ role: 'user' as const, content: ONCE }],
  temperature: 0,
  max_tokens: 30,
};
const STORY = ', there was a little girl named Lily. She loved to play outside in the park. One day,';

const withKey = () => serve({ apiKeys: [KEY] });
const openai = ({ url }: Running, apiKey = KEY) =>
  new OpenAI({ baseURL: `${url}/v1`, apiKey, maxRetries: 0 });

describe('openai', () => {
  it('gets whole and streamed answers, and lists models', async () => {
    const client = openai(await withKey());
    const whole = await client.chat.completions.create(CHAT);
    expect(whole.choices[0]!.message.content).toContain(STORY);
    const stream = await client.chat.completions.create({
      ...CHAT,
      stream: true,
      stream_options: { include_usage: true },
    });
    let text = '';
    let total = 0;
    for await (const chunk of stream) {
      text += chunk.choices[0]?.delta.content ?? '';
      total = chunk.usage?.total_tokens ?? total;
    }
    expect(text).toBe(whole.choices[0]!.message.content);
    expect(total).toBe(whole.usage!.total_tokens);
    const models = await client.models.list();
    expect(models.data.map(({ id }) => id)).toEqual(['stories', 'chat']);
    expect((await client.models.retrieve('chat')).owned_by).toBe('cflow');
  });

  it('joins a stream to the message of a whole answer', async () => {
    const client = openai(await withKey());
    const body = { ...CHAT, n: 2, temperature: 1, seed: 3, logprobs: true, top_logprobs: 2 };
    const whole = await client.chat.completions.create(body);
    const joined = await client.chat.completions.stream(body).finalChatCompletion();
    const plain = (choices: readonly { message: { content: string | null }; logprobs?: unknown }[]) =>
      choices.map(({ message, logprobs }) => [message.content, logprobs]);
    expect(plain(joined.choices)).toEqual(plain(whole.choices));
  });

  it('completes texts', async () => {
    const client = openai(await withKey());
    const { choices } = await client.completions.create({ model: 'stories', prompt: ONCE, temperature: 0 });
    expect(STORY).toContain(choices[0]!.text);
  });

  it('gets its own classes of errors', async () => {
    const server = await withKey();
    const client = openai(server);
    await expect(client.chat.completions.create({ ...CHAT, model: 'x' })).rejects.toThrow(
      OpenAI.NotFoundError,
    );
    await expect(client.chat.completions.create({ ...CHAT, temperature: -1 })).rejects.toMatchObject({
      status: 400,
      param: 'temperature',
      type: 'invalid_request_error',
    });
    const wrong = openai(server, 'wrong');
    await expect(wrong.models.list()).rejects.toThrow(OpenAI.AuthenticationError);
  });

  it('frees a place when it aborts a stream', async () => {
    const server = await serve({ apiKeys: [KEY], maxSequences: 1 });
    const client = openai(server);
    const body = { ...CHAT, max_tokens: 300, ignore_eos: true };
    const stream = await client.chat.completions.create({ ...body, stream: true });
    for await (const _ of stream) break;
    await until(() => server.service.admission.size === 0);
    const { choices } = await client.chat.completions.create(CHAT);
    expect(choices[0]!.message.content).toContain(STORY);
  });
});

describe('ai, with @ai-sdk/openai-compatible', () => {
  it('gets whole and streamed answers', async () => {
    const { url } = await withKey();
    const provider = createOpenAICompatible({
      name: 'cflow',
      baseURL: `${url}/v1`,
      apiKey: KEY,
      includeUsage: true,
    });
    const request = { model: provider('chat'), prompt: ONCE, temperature: 0, maxOutputTokens: 30 };
    const { text, finishReason, usage } = await generateText(request);
    expect(text).toContain(STORY);
    expect(finishReason).toBe('length');
    const streamed = streamText(request);
    let joined = '';
    for await (const piece of streamed.textStream) joined += piece;
    expect(joined).toBe(text);
    expect((await streamed.usage).outputTokens).toBe(usage.outputTokens);
  });
});

describe('@langchain/openai', () => {
  it('gets whole and streamed answers', async () => {
    const { url } = await withKey();
    const configuration = { baseURL: `${url}/v1` };
    const model = new ChatOpenAI({
      model: 'chat',
      apiKey: KEY,
      configuration,
      temperature: 0,
      maxTokens: 30,
    });
    const messages = [new HumanMessage(ONCE)];
    const { content } = await model.invoke(messages);
    expect(content).toContain(STORY);
    let joined = '';
    for await (const chunk of await model.stream(messages)) joined += chunk.content;
    expect(joined).toBe(content);
  });
});
