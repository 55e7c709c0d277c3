import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { captured } from '@cflow/test-kit/captured';
import { describe, expect, it, onTestFinished, vi } from 'vitest';
import { Chat } from '../src/chat/chat.js';
import { type ChatMessage, ChatTemplate } from '../src/chat/template.js';
import { main } from '../src/cli.js';
import { Model } from '../src/model.js';
import { CHARACTERS, character } from './character-tokenizer.js';
import { goldenFile } from './model-file.js';

const CHATML =
  "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}" +
  "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";
/** In the manner of Llama 2: roles that must alternate, BOS spelled out, blocks that leave no lines. */
const STRICT = `{{ bos_token }}
{%- for message in messages %}
    {%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('roles must alternate') }}
    {%- endif %}
    {%- if message.role == 'user' %}[{{ message.content | trim }}]{% else %}{{ message.content }}{{ eos_token }}{% endif %}
{%- endfor %}`;
const STRICT_CONFIG = JSON.stringify({ bos_token: '<s>', eos_token: { content: '</s>', lstrip: false } });
const user = (content: string) => ({ role: 'user', content });
const assistant = (content: string) => ({ role: 'assistant', content });

describe('ChatTemplate', () => {
  it('renders a conversation and opens the answer', async () => {
    const template = new ChatTemplate({ chatTemplate: CHATML });
    expect(await template.render([{ role: 'system', content: 'Be brief.' }, user('Hi')])).toBe(
      '<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n',
    );
  });

  it('knows special tokens as texts and as objects', async () => {
    const template = new ChatTemplate({ chatTemplate: STRICT, tokenizerConfigJson: STRICT_CONFIG });
    expect(await template.render([user(' a '), assistant('b'), user('c')])).toBe('<s>[a]b</s>[c]');
  });

  it('says what a template refuses, and that one is missing or broken', async () => {
    const template = new ChatTemplate({ chatTemplate: STRICT });
    await expect(template.render([assistant('b')])).rejects.toThrow(
      expect.objectContaining({ code: 'USAGE', message: expect.stringContaining('roles must alternate') }),
    );
    expect(() => new ChatTemplate({})).toThrow('the file has no chat template');
    for (const chatTemplate of ['{% for %}', '{{ 1 | nonesuch }}']) {
      await expect(new ChatTemplate({ chatTemplate }).check()).rejects.toThrow(
        expect.objectContaining({ code: 'UNSUPPORTED' }),
      );
    }
  });
});

describe('a chat template without bounds', () => {
  const loops = (count: number, body: string, depth = 1) =>
    `${`{% for i in range(${count}) %}`.repeat(depth)}${body}${'{% endfor %}'.repeat(depth)}`;
  const grown = (start: string, times: number) =>
    `{% set ns = namespace(a=${start}) %}${loops(times, '{% set ns.a = ns.a + ns.a %}')}`;

  /** Time passes when a test says so: how long a template takes here does not matter. */
  const stopTime = () => {
    vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout'] });
    onTestFinished(() => void vi.useRealTimers());
  };
  const exceeded = (limit: string) =>
    expect.objectContaining({
      code: 'LIMIT_EXCEEDED',
      message: `the chat template takes more than ${limit} (use --prompt without --chat, or correct the template)`,
    });

  it.each([
    ['a growing list', grown('[1, 2]', 60), '256 MiB of memory'],
    ['a long text in parts', `${grown('"a b "', 26)}{{ ns.a.split(" ") | length }}`, '256 MiB of memory'],
    ['a long text', `${grown('"ab"', 24)}{{ ns.a }}`, '16777216 characters of text: 33554432'],
  ])('stops %s', async (_, chatTemplate, limit) => {
    stopTime();
    await expect(new ChatTemplate({ chatTemplate }).render([user('a')])).rejects.toThrow(exceeded(limit));
  });

  it('stops nested loops when their time is over', async () => {
    stopTime();
    const rendering = new ChatTemplate({ chatTemplate: loops(3000, '', 3) }).render([user('a')]);
    let ended = false;
    const end = expect(rendering.finally(() => (ended = true))).rejects.toThrow(exceeded('5000 ms'));
    await vi.advanceTimersByTimeAsync(4999);
    expect(ended).toBe(false);
    await vi.advanceTimersByTimeAsync(1);
    await end;
    expect(vi.getTimerCount()).toBe(0);
  });

  it('hands over a text of up to the limit', async () => {
    const chatTemplate = `${grown('"ab"', 23)}{{ ns.a }}`;
    expect(await new ChatTemplate({ chatTemplate }).render([])).toHaveLength(16_777_216);
  });

  it('is not one that loops over a few entries', async () => {
    expect(await new ChatTemplate({ chatTemplate: loops(3, '{{ i }}') }).render([])).toBe('012');
  });
});

async function modelFile(chatTemplate?: string, arch = 'arch4'): Promise<string> {
  const directory = await mkdtemp(join(tmpdir(), 'cflow-chat-'));
  onTestFinished(() => rm(directory, { recursive: true }));
  const file = join(directory, 'model.cflow');
  const tokenizer = {
    tokenizerJson: JSON.stringify(CHARACTERS),
    vocabSize: 97,
    ...(chatTemplate !== undefined && { chatTemplate, tokenizerConfigJson: STRICT_CONFIG }),
  };
  await writeFile(file, (await goldenFile(arch, { tokenizer })).bytes);
  return file;
}

describe('Chat', () => {
  it('adds no token that the template does not spell, and keeps exchanges', async () => {
    const model = await Model.open(await modelFile(STRICT), { engine: 'reference' });
    try {
      const chat = new Chat(model);
      const ids = await chat.prompt('ab');
      expect(ids).toEqual([1, ...[...'[ab]'].map(character)]);
      expect(model.tokenizer!.encode('ab', { specialTokens: false })).toEqual([...'ab'].map(character));
      const answer: string[] = [];
      for await (const { text } of chat.reply('ab', { maxTokens: 3, temperature: 0 })) answer.push(text);
      expect(answer).toHaveLength(3);
      expect(chat.messages).toEqual([user('ab'), assistant(answer.join(''))]);
      expect((await chat.prompt('c')).length).toBeGreaterThan(ids.length);
    } finally {
      await model.close();
    }
  });
});

describe('turns of a conversation', () => {
  it.each(['reference', 'native'] as const)('pass what is new alone in the %s engine', async (engine) => {
    const model = await Model.open(await modelFile(STRICT), {
      engine,
      ...(engine === 'native' && { cache: 'f32' }),
    });
    try {
      const answers = async (chat: Chat) => {
        let text = '';
        const options = { maxTokens: 4, temperature: 0, ignoreEos: true };
        for await (const token of chat.reply('abcdefghij', options)) text += token.text;
        return text;
      };
      const [chat, forgetful] = [new Chat(model), new Chat(model)];
      for (let turn = 0; turn < 3; turn++) {
        const whole = (await chat.prompt('abcdefghij')).length;
        await forgetful.close();
        expect(await answers(chat)).toBe(await answers(forgetful));
        expect(forgetful.stats!.promptTokens).toBe(whole);
        // The answer of the turn before ends in a token that the template closes with another.
        if (turn > 0) expect(chat.stats!.promptTokens).toBeLessThan(20);
      }
    } finally {
      await model.close();
    }
  });
});

describe('what templates are given', () => {
  const rendered = (chatTemplate: string, variables = {}, messages: ChatMessage[] = [user('hi')]) =>
    new ChatTemplate({ chatTemplate }).render(messages, variables);

  it('tools and documents are none, options are theirs', async () => {
    const source =
      '{{ tools is none }} {{ documents is none }} {{ enable_thinking is defined }} {{ date_string }}';
    expect(await rendered(source)).toBe('True True False ');
    expect(await rendered(source, { enable_thinking: false, date_string: '1 May 2024' })).toBe(
      'True True True 1 May 2024',
    );
    expect(await rendered('{{ tools[0].name }}', { tools: [{ name: 'add' }] })).toBe('add');
  });

  it('content in parts where the template shows only these, as text where it shows texts', async () => {
    const parts =
      "{% for m in messages %}{% for c in m.content | selectattr('type', 'equalto', 'text') %}<{{ c.text }}>{% endfor %}{% endfor %}";
    expect(await rendered(parts)).toBe('<hi>');
    const text = '{{ messages[0].content }}';
    expect(await rendered(text, {}, [{ role: 'user', content: [{ type: 'text', text: 'hi' }] }])).toBe('hi');
  });
});

describe('a long conversation', () => {
  it('forgets its oldest turns, keeps the system, and refuses a message that does not fit alone', async () => {
    const model = await Model.open(await modelFile(STRICT), { engine: 'reference' });
    try {
      const dropped: number[] = [];
      const chat = new Chat(model, { onDropped: (messages) => dropped.push(messages) });
      const { contextLength } = model.config;
      const message = 'x'.repeat(Math.floor(contextLength / 3));
      const options = { maxTokens: 4, temperature: 0, ignoreEos: true };
      for (let turn = 0; turn < 4; turn++) for await (const _ of chat.reply(message, options));
      expect(dropped.length).toBeGreaterThan(0);
      expect(dropped.every((messages) => messages % 2 === 0)).toBe(true);
      expect(chat.messages.length).toBeLessThan(8);
      const kept = chat.messages.length;
      const tooLong = chat.reply('x'.repeat(contextLength), options).next();
      await expect(tooLong).rejects.toThrow(expect.objectContaining({ code: 'LIMIT_EXCEEDED' }));
      expect(chat.messages.length).toBeLessThanOrEqual(kept);
    } finally {
      await model.close();
    }
  });
});

describe('control tokens that users type', () => {
  const turn = '{% for m in messages %}<s>{{ m.content | trim }}</s>{% endfor %}';
  const ids = async (content: string) => {
    const model = await Model.open(await modelFile(turn), { engine: 'reference' });
    try {
      return await new Chat(model).prompt(content);
    } finally {
      await model.close();
    }
  };

  it('are plain text, those of the template are not', async () => {
    expect(await ids('a')).toEqual([1, character('a'), 2]);
    expect(await ids('a</s><s>b')).toEqual([1, ...[...'a</s><s>b'].map(character), 2]);
    expect(await ids('</s>')).toEqual([1, ...[...'</s>'].map(character), 2]);
  });

  it('whatever marks a text has', async () => {
    for (const mark of ['\ufdd0', '\ufdd1', '\ufdd2']) {
      const found = await ids(`${mark}</s>${mark}<s>`);
      expect([found[0], found.at(-1), found.filter((id) => id === 1 || id === 2).length]).toEqual([1, 2, 2]);
    }
  });
});

const run = (...argv: string[]) => captured(main, argv);

describe('cflow-run --chat', () => {
  const greedy = ['--max-tokens', '4', '--temperature', '0'];

  it('answers one message as JSON', async () => {
    const file = await modelFile(STRICT);
    const { code, out, err } = await run(file, '--chat', '--prompt', 'ab', '--json', ...greedy);
    expect([code, err]).toEqual([0, '']);
    expect(JSON.parse(out)).toEqual({ role: 'assistant', content: expect.any(String) });
  });

  it('--explain says before what was chosen, and after it what came of that', async () => {
    const file = await modelFile(STRICT, 'arch2_4');
    const fetched = ['--memory', '8GB', '--expert-slots', '8', '--explain'];
    const { code, err } = await run(file, '--chat', '--prompt', 'ab', ...fetched, ...greedy);
    expect({ code, err: code ? err : '' }).toEqual({ code: 0, err: '' });
    expect(err).toMatch(/^offloaded +experts, 8 in memory$[\s\S]*^disk +[\d.]+ [kM]B at [\d.]+ [kMG]B\/s/m);
    expect(err).toMatch(/^reached +[\d.]+ tokens\/s, [\d.]+ of the prediction(; warm-up: .+)?$/m);
  });

  it('refuses files without a template, and options that do not go together', async () => {
    const plain = await run(await modelFile(), '--chat', '--prompt', 'ab');
    expect(plain).toMatchObject({ code: 8, err: expect.stringContaining('the file has no chat template') });
    const file = await modelFile(STRICT);
    expect(await run(file, '--chat', '--ids', '1')).toMatchObject({
      code: 2,
      err: expect.stringContaining('--chat can be combined with --prompt or --prompt-file only'),
    });
    expect(await run(file, '--prompt', 'a', '--system', 'b')).toMatchObject({
      code: 2,
      err: expect.stringContaining('--system: requires --chat'),
    });
  });
});
