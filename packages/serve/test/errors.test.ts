/** What is refused, and how: every answer is OpenAI's envelope. */
import { expect, it } from 'vitest';
import { ONCE, post, serve } from './helpers.js';

const COMPLETION = { model: 'stories', prompt: ONCE };
const MESSAGES = [{ role: 'user', content: ONCE }];
const CHAT = { model: 'chat', messages: MESSAGES };

const schema = (of: object) => ({ type: 'json_schema', json_schema: { name: 'answer', schema: of } });

/** Path, body, status, field, a part of the message. */
const REFUSED: [string, unknown, number, string | null, string][] = [
  ['completions', '{"model":', 400, null, 'not valid JSON'],
  ['completions', {}, 400, 'model', 'expected string'],
  [
    'completions',
    { ...COMPLETION, model: 'x' },
    404,
    'model',
    'there is no model "x"; there are stories, chat',
  ],
  ['completions', { ...COMPLETION, top_q: 1 }, 400, 'top_q', 'unknown field'],
  ['completions', { ...COMPLETION, prompt: 5 }, 400, 'prompt', 'a text or token ids is expected'],
  ['completions', { ...COMPLETION, prompt: [2048] }, 400, null, '2048 is not a whole number from 0 to 2047'],
  ['completions', { ...COMPLETION, temperature: -1 }, 400, 'temperature', 'expected number to be >=0'],
  ['completions', { ...COMPLETION, seed: 2 ** 32 }, 400, 'seed', '4294967295'],
  [
    'completions',
    { ...COMPLETION, max_tokens: 381 },
    400,
    'max_tokens',
    '381 tokens do not fit the context of 384',
  ],
  ['completions', { ...COMPLETION, prompt: ONCE.repeat(100) }, 400, null, 'and the context of the model 384'],
  [
    'completions',
    { ...COMPLETION, logit_bias: { 2048: 1 } },
    400,
    'logit_bias',
    '2048 is not a token id below 2048',
  ],
  ['completions', { ...COMPLETION, suffix: 'x' }, 400, 'suffix', 'not supported'],
  ['completions', { ...COMPLETION, echo: true }, 400, 'echo', 'not supported'],
  ['completions', { ...COMPLETION, n: 17 }, 400, 'n', '16'],
  ['completions', { ...COMPLETION, prompt: [ONCE, ONCE], n: 9 }, 400, 'n', '2 prompts × n = 9'],
  ['completions', { ...COMPLETION, stop: '' }, 400, 'stop', ''],
  ['completions', { ...COMPLETION, logprobs: 21 }, 400, 'logprobs', '20'],
  ['chat/completions', { ...CHAT, model: 'stories' }, 400, 'model', 'no chat template; use /v1/completions'],
  ['chat/completions', { ...CHAT, messages: [] }, 400, 'messages', '>=1'],
  [
    'chat/completions',
    { ...CHAT, messages: [{ role: 'user' }] },
    400,
    'messages[0].content',
    'a text or an array',
  ],
  [
    'chat/completions',
    { ...CHAT, messages: [{ role: 'x', content: '' }] },
    400,
    'messages[0].role',
    'Invalid',
  ],
  [
    'chat/completions',
    { ...CHAT, messages: [{ ...MESSAGES[0], x: 1 }] },
    400,
    'messages[0].x',
    'unknown field',
  ],
  [
    'chat/completions',
    { ...CHAT, messages: [{ role: 'user', content: ONCE.repeat(100) }] },
    400,
    null,
    'the context',
  ],
  ['chat/completions', { ...CHAT, functions: [] }, 400, 'functions', 'use tools'],
  ['chat/completions', { ...CHAT, tools: [{ type: 'x' }] }, 400, 'tools[0].type', '"function"'],
  ['chat/completions', { ...CHAT, tool_choice: 'required' }, 400, 'tool_choice', 'only "none" and "auto"'],
  ['chat/completions', { ...CHAT, response_format: { type: 'xml' } }, 400, 'response_format.type', 'Invalid'],
  [
    'chat/completions',
    { ...CHAT, response_format: schema({ type: 'nothing' }) },
    400,
    'response_format',
    'response_format: #/type: ',
  ],
  [
    'chat/completions',
    { ...CHAT, response_format: schema({ enum: [] }) },
    400,
    'response_format',
    'JSON schema: ',
  ],
  ['chat/completions', { ...CHAT, top_logprobs: 2 }, 400, 'top_logprobs', 'belongs to logprobs'],
];

it('bad requests get a status, the field, and what is wrong', async () => {
  const { url } = await serve();
  for (const [path, body, status, param, message] of REFUSED) {
    for (const stream of [false, true]) {
      const sent = stream && typeof body === 'object' ? { ...body, stream } : body;
      const response = await post(`${url}/v1/${path}`, sent);
      const answer = (await response.json()) as { error: { message: string } };
      const type = 'invalid_request_error';
      expect([body, response.status, answer]).toMatchObject([body, status, { error: { type, param } }]);
      expect(answer.error.message).toContain(message);
      expect(response.headers.get('x-should-retry')).toBe('false');
    }
  }
});

it('what is no request of the API is refused in the same envelope', async () => {
  const { url } = await serve({ bodyBytes: 1000 });
  const json = { 'content-type': 'application/json' };
  const requests: [string, RequestInit, number, string][] = [
    ['/v1/nothing', {}, 404, 'not_found'],
    ['/v1/models/x', {}, 404, 'model_not_found'],
    ['/v1/completions', {}, 404, 'not_found'],
    ['/v1/completions', { method: 'POST', body: 'x'.repeat(1001), headers: json }, 413, 'body_too_large'],
    [
      '/v1/completions',
      { method: 'POST', body: '{}', headers: { 'content-type': 'text/plain' } },
      415,
      'unsupported_media_type',
    ],
    ['/v1/completions', { method: 'POST', body: '', headers: json }, 400, 'invalid_json'],
    ['/%', {}, 400, 'invalid_json'],
    ['/v1/models', { headers: { x: 'y'.repeat(20_000) } }, 431, 'headers_too_large'],
  ];
  for (const [path, init, status, code] of requests) {
    const response = await fetch(url + path, init);
    const answer = await response.json();
    const envelope = { message: expect.any(String), type: 'invalid_request_error', code };
    expect([path, response.status, answer]).toMatchObject([path, status, { error: envelope }]);
  }
});
