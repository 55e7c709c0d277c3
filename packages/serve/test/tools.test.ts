/** Calls of tools, reasoning and JSON by a schema, through the clients that most programs use. */

import { join } from 'node:path';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { type GenerateOptions, Model, Scheduler } from '@cflow/runtime-native';
import { HumanMessage } from '@langchain/core/messages';
import { ChatOpenAI } from '@langchain/openai';
import { generateText, Output, stepCountIs, streamText, tool } from 'ai';
import OpenAI from 'openai';
import { zodResponseFormat } from 'openai/helpers/zod';
import { describe, expect, it, onTestFinished, vi } from 'vitest';
import { z } from 'zod';
import { events, models, ONCE, post, serve } from './helpers.js';

const CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>';
const ANSWER = `<think>Which city?</think>Let me look.${CALL}`;
const SUNNY = 'It is sunny.';

/**
 * A server of the model `tools` whose model says what a story would not: it calls the tool, and once a prompt has the result,
 * it tells. Prompts are what it got.
 */
async function scripted(answer = ANSWER) {
  const home = await models();
  const path = join(home, 'tools.cflow');
  const prompts: string[] = [];
  const model = await Model.open(path);
  onTestFinished(() => model.close());
  const spy = vi.spyOn(Scheduler.prototype, 'generate');
  onTestFinished(() => spy.mockRestore());
  spy.mockImplementation(async function* ({ ids }: GenerateOptions) {
    prompts.push(model.requireTokenizer().decode([...ids!]));
    const text = prompts.at(-1)!.includes('tool: sunny') ? SUNNY : answer;
    const pieces = text.match(/.{1,3}/gs)!;
    for (const [i, piece] of pieces.entries())
      yield { id: 5, text: piece, ...(i === pieces.length - 1 && { finish: 'eos' as const }) };
  });
  const server = await serve({ models: [{ id: 'tools', path }] });
  return { ...server, prompts };
}

const WEATHER = {
  type: 'function' as const,
  function: {
    name: 'weather',
    description: 'The weather of a city',
    parameters: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] },
  },
};
const ASKED = { role: 'user' as const, content: 'How is the weather in Paris?' };
const CALLED = { type: 'function', function: { name: 'weather', arguments: '{"city":"Paris"}' } };

describe('openai', () => {
  it('gets calls of tools and reasoning, whole and streamed, and tells what they gave', async () => {
    const { url, prompts } = await scripted();
    const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: 'none', maxRetries: 0 });
    const body = { model: 'tools', messages: [ASKED], tools: [WEATHER] };
    const { choices } = await client.chat.completions.create(body);
    const { message, finish_reason } = choices[0]!;
    expect(finish_reason).toBe('tool_calls');
    expect(message).toMatchObject({
      content: 'Let me look.',
      reasoning_content: 'Which city?',
      tool_calls: [CALLED],
    });
    expect(prompts[0]).toContain('"name": "weather"');
    const joined = await client.chat.completions.stream(body).finalChatCompletion();
    expect(joined.choices[0]).toMatchObject({
      finish_reason,
      message: { content: message.content, tool_calls: [CALLED] },
    });
    const result = { role: 'tool' as const, tool_call_id: message.tool_calls![0]!.id, content: 'sunny' };
    const told = await client.chat.completions.create({ ...body, messages: [ASKED, message, result] });
    expect(told.choices[0]!.message.content).toBe(SUNNY);
    expect(told.choices[0]!.finish_reason).toBe('stop');
    // Templates take arguments as objects.
    expect(prompts.at(-1)).toContain('"arguments": {"city": "Paris"}');
  });

  it('parses answers that follow a schema', async () => {
    const { url } = await serve();
    const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: 'none', maxRetries: 0 });
    const body = { model: 'chat', messages: [{ role: 'user' as const, content: ONCE }], seed: 5 };
    const format = zodResponseFormat(CHILD, 'child');
    const { choices } = await client.chat.completions.parse({ ...body, response_format: format });
    expect(CHILD.parse(choices[0]!.message.parsed)).toEqual(choices[0]!.message.parsed);
    const object = await client.chat.completions.create({
      ...body,
      max_tokens: 300,
      response_format: { type: 'json_object' },
    });
    if (object.choices[0]!.finish_reason === 'stop')
      expect(JSON.parse(object.choices[0]!.message.content!)).toBeTypeOf('object');
    expect(object.choices[0]!.message.content).toMatch(/^\s*\{/);
  });
});

/** What a story model can say without end is bounded. */
const CHILD = z.object({ name: z.enum(['Lily', 'Max']), age: z.int().min(1).max(9), happy: z.boolean() });

describe('ai, with @ai-sdk/openai-compatible', () => {
  const provider = (url: string) =>
    createOpenAICompatible({ name: 'cflow', baseURL: `${url}/v1`, supportsStructuredOutputs: true });

  it('runs tools, whole and streamed', async () => {
    const { url } = await scripted();
    const cities: string[] = [];
    const execute = async ({ city }: { city: string }) => {
      cities.push(city);
      return 'sunny';
    };
    const weather = tool({
      description: 'The weather',
      inputSchema: z.object({ city: z.string() }),
      execute,
    });
    const request = {
      model: provider(url)('tools'),
      prompt: ASKED.content,
      tools: { weather },
      stopWhen: stepCountIs(3),
    };
    const { text, steps } = await generateText(request);
    expect([text, steps[0]!.reasoningText, steps[0]!.text]).toEqual([SUNNY, 'Which city?', 'Let me look.']);
    expect(await streamText(request).text).toBe(SUNNY);
    expect(cities).toEqual(['Paris', 'Paris']);
  });

  it('gets objects by a schema', async () => {
    const { url } = await serve();
    const output = Output.object({ schema: CHILD });
    const result = await generateText({ model: provider(url)('chat'), prompt: ONCE, output, seed: 6 });
    expect(CHILD.parse(result.output)).toEqual(result.output);
  });
});

describe('@langchain/openai', () => {
  it('gets calls of tools, and objects by a schema', async () => {
    const { url } = await scripted();
    const configuration = { baseURL: `${url}/v1` };
    const model = new ChatOpenAI({ model: 'tools', apiKey: 'none', configuration });
    const { tool_calls } = await model.bindTools([WEATHER]).invoke([new HumanMessage(ASKED.content)]);
    expect(tool_calls).toMatchObject([{ name: 'weather', args: { city: 'Paris' } }]);
  });

  it('gets objects by a schema', async () => {
    const { url } = await serve();
    const configuration = { baseURL: `${url}/v1` };
    const model = new ChatOpenAI({ model: 'chat', apiKey: 'none', configuration });
    const structured = model.withStructuredOutput(CHILD, { method: 'jsonSchema' });
    expect(CHILD.safeParse(await structured.invoke(ONCE)).success).toBe(true);
  });
});

it('does not tell the model of tools that it must not call, and reads no call then', async () => {
  const { url, prompts } = await scripted();
  const body = { model: 'tools', messages: [ASKED], tools: [WEATHER], tool_choice: 'none' };
  const answer = await (await post(`${url}/v1/chat/completions`, body)).json();
  expect(prompts[0]).not.toContain('"name": "weather"');
  expect(answer).toMatchObject({
    choices: [{ finish_reason: 'stop', message: { content: `Let me look.${CALL}` } }],
  });
});

it('numbers the calls of a stream', async () => {
  const { url } = await scripted(CALL + CALL);
  const body = { model: 'tools', messages: [ASKED], tools: [WEATHER], stream: true };
  const chunks = await events(await post(`${url}/v1/chat/completions`, body));
  const deltas = chunks.flatMap((chunk) =>
    (chunk.choices as { delta: { tool_calls?: object[] } }[]).map(({ delta }) => delta),
  );
  expect(deltas.flatMap(({ tool_calls = [] }) => tool_calls)).toMatchObject([
    { index: 0, ...CALLED },
    { index: 1, ...CALLED },
  ]);
});
