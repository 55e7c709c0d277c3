/** Requests share the steps of a model, and what prompts begin with. */
import { expect, it } from 'vitest';
import type { CompletionAnswer } from '../src/schema/completions.js';
import { ONCE, post, type Running, serve } from './helpers.js';

const GREEDY = { model: 'stories', prompt: ONCE, temperature: 0, max_tokens: 12 };

interface Stats {
  readonly models: {
    readonly prompt_tokens: number;
    readonly reused_tokens: number;
    readonly batch_size: number;
  }[];
}
const statsOf = async ({ url }: Running) =>
  ((await (await fetch(`${url}/stats`)).json()) as Stats).models[0]!;
const textOf = async ({ url }: Running, body: object) => {
  const answer = (await (await post(`${url}/v1/completions`, body)).json()) as CompletionAnswer;
  return answer.choices[0]!.text;
};

it('a request joins those that run, and its text is that of one alone', async () => {
  const server = await serve();
  const alone = await textOf(server, GREEDY);
  const long = { ...GREEDY, max_tokens: 380, ignore_eos: true, n: 3 };
  const stream = await post(`${server.url}/v1/completions`, { ...long, stream: true });
  expect(await textOf(server, GREEDY)).toBe(alone);
  // The others have not ended: they were in the same steps.
  expect(server.service.admission.size).toBe(1);
  expect((await statsOf(server)).batch_size).toBeGreaterThan(1);
  await stream.body!.cancel();
});

it('a prompt goes on from one that began alike, and says so', async () => {
  const story = `${ONCE} there was a little girl who had a red ball and a blue kite that she loved to fly high.`;
  const server = await serve({ prefixBytes: 2 ** 26 });
  const plain = await serve();
  for (const prompt of [story, `${story} One day`]) {
    const body = { ...GREEDY, prompt };
    expect(await textOf(server, body)).toBe(await textOf(plain, body));
  }
  const { prompt_tokens, reused_tokens } = await statsOf(server);
  expect(reused_tokens).toBeGreaterThan(15);
  expect(reused_tokens).toBeLessThan(prompt_tokens);
  expect((await statsOf(plain)).reused_tokens).toBe(0);
});
