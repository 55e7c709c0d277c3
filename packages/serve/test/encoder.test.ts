/** Long texts are encoded beside everything else, to the same ids. */
import { join } from 'node:path';
import { Model } from '@cflow/runtime-native';
import { expect, it, onTestFinished } from 'vitest';
import { Encoder } from '../src/encoder.js';
import { models, ONCE } from './helpers.js';

async function encoderOf(name: string) {
  const model = await Model.open(join(await models(), `${name}.cflow`));
  const encoder = new Encoder(model);
  onTestFinished(async () => {
    await encoder.close();
    await model.close();
  });
  return { tokenizer: model.requireTokenizer(), encoder };
}

const never = new AbortController().signal;
const LONG = `${ONCE} there was a girl. `.repeat(2000);

it('gives the ids that the tokenizer gives, while others have their turns', async () => {
  const { tokenizer, encoder } = await encoderOf('chat');
  let turns = 0;
  const count = setInterval(() => turns++, 1);
  const texts = [ONCE, LONG, `<|endoftext|>${LONG}`];
  const prompts = await Promise.all(texts.map((text) => encoder.encode('prompt', text, never)));
  clearInterval(count);
  expect(turns).toBeGreaterThan(5);
  expect(prompts).toEqual(texts.map((text) => tokenizer.encode(text)));
  const rendered = await encoder.encode('rendered', LONG, never);
  expect(rendered).toEqual(tokenizer.encode(LONG, { specialTokens: false }));
});

it('keeps control tokens of users text, in long texts too', async () => {
  const { tokenizer, encoder } = await encoderOf('chat');
  const typed = '\ufdd0<|endoftext|>\ufdd1';
  const [end] = tokenizer.endIds;
  const short = await encoder.encode('marked', `${typed}a<|endoftext|>`, never);
  const long = await encoder.encode('marked', `${typed}${LONG}<|endoftext|>`, never);
  // Of the two, what the template wrote is the token.
  for (const ids of [short, long]) expect(ids.filter((id) => id === end)).toEqual([end]);
});

it('ends a text whose client is gone, and goes on with the next', async () => {
  const { tokenizer, encoder } = await encoderOf('stories');
  const gone = new AbortController();
  const lost = encoder.encode('prompt', LONG.repeat(20), gone.signal);
  const next = encoder.encode('prompt', LONG, never);
  setTimeout(() => gone.abort(new Error('gone')), 20);
  await expect(lost).rejects.toThrow('gone');
  expect(await next).toEqual(tokenizer.encode(LONG));
});
