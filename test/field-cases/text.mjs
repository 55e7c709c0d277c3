/** Tokenizers, generated text and conversations. */
import { importTokenizer } from '../../packages/convert/dist/gguf/tokenizer-import.js';
import { Chat, ChatTemplate, Model, TextTokenizer } from '../../packages/runtime-native/dist/index.js';

const TEST = 'packages/runtime-native/test';
const user = (content) => ({ role: 'user', content });
const special = (content, id) => ({ id, content, special: true });

/** Seven tokens: two control tokens, then characters. */
const TOKENIZER = {
  added_tokens: [special('<u>', 0), special('<e>', 5)],
  normalizer: null,
  pre_tokenizer: null,
  post_processor: null,
  decoder: { type: 'Fuse' },
  model: { type: 'BPE', vocab: { '<u>': 0, '<': 1, u: 2, '>': 3, e: 4, '<e>': 5, a: 6 }, merges: [] },
};

/** Converts a checkpoint with these files and opens it. */
async function opened(t, name, more, work, config = {}) {
  const result = await t.convert(t.checkpoint(name, { more, config }), { output: t.at(`${name}.cflow`) });
  const model = await Model.open(result.output, { engine: 'reference' });
  try {
    return await work(model, result);
  } finally {
    await model.close();
  }
}

const rendered = (chatTemplate, variables, messages = [user('hi')]) =>
  new ChatTemplate({ chatTemplate }).render(messages, variables);

export default [
  {
    id: 16,
    kind: 'a tokenizer that the library cannot run',
    test: 'packages/convert/test/tokenizer-notes.test.ts',
    run: async (t) => {
      const json = { ...TOKENIZER, pre_tokenizer: { type: 'UnicodeScripts' } };
      const source = t.checkpoint('scripts', { more: { 'tokenizer.json': json } });
      const { notes, output } = await t.convert(source);
      t.assert.ok(notes.some((note) => note.includes('UnicodeScripts')));
      t.assert.deepEqual((await t.dryRun(source)).notes, notes);
      const ids = await t.run('cflow-run', [output, '--ids', '1,2', '--max-tokens', '2', '--json']);
      t.assert.equal(ids.code, 0, ids.stderr);
      t.assert.equal((await t.run('cflow-run', [output, '--prompt', 'a'])).code, 8);
      return notes[0];
    },
  },
  {
    id: 17,
    kind: 'a chat template beyond the library',
    test: 'packages/convert/test/tokenizer-notes.test.ts',
    run: async (t) => {
      const more = { 'tokenizer.json': TOKENIZER, 'chat_template.jinja': '{{ messages | nonesuch }}' };
      const { notes } = await t.convert(t.checkpoint('beyond', { more }), { output: t.at('beyond.cflow') });
      t.assert.ok(notes.some((note) => note.includes('filter "nonesuch"')));
      return notes.at(-1);
    },
  },
  {
    id: 19,
    kind: 'characters whose bytes lie in several tokens',
    test: `${TEST}/streamed-text.test.ts`,
    run: (t) => {
      const bytes = [0xf0, 0x9f, 0x91, 0x8b];
      const token = (byte) => `<0x${byte.toString(16).toUpperCase()}>`;
      const vocab = Object.fromEntries(bytes.map((byte, id) => [token(byte), id]));
      const decoder = { type: 'Sequence', decoders: [{ type: 'ByteFallback' }, { type: 'Fuse' }] };
      const json = { ...TOKENIZER, added_tokens: [], decoder, model: { type: 'BPE', vocab, merges: [] } };
      const tokenizer = new TextTokenizer({ tokenizerJson: JSON.stringify(json), vocabSize: 4 });
      const stream = tokenizer.stream();
      t.assert.deepEqual(
        [0, 1, 2, 3].map((id) => stream.push(id)),
        ['', '', '', '👋'],
      );
      return 'four bytes, one piece';
    },
  },
  {
    id: 20,
    kind: 'an eos_token that only tokenizer_config.json has',
    test: `${TEST}/generation.test.ts`,
    run: (t) => {
      const more = { 'tokenizer.json': TOKENIZER, 'tokenizer_config.json': { eos_token: '<e>' } };
      return opened(
        t,
        'ends',
        { ...more, 'generation_config.json': { eos_token_id: [3] } },
        async (model) => {
          const ids = [...model.createSession().endIds].sort();
          t.assert.deepEqual(ids, [3, 4, 5]);
          return `ends at ${ids}`;
        },
        { eos_token_id: 4 },
      );
    },
  },
  {
    id: 22,
    kind: 'pre-tokenizers of GGUF',
    test: 'packages/convert/test/pre-tokenizers.test.ts',
    run: (t) => {
      const read = (pre) =>
        importTokenizer(
          new Map([
            ['tokenizer.ggml.model', 'gpt2'],
            ['tokenizer.ggml.pre', pre],
            ['tokenizer.ggml.tokens', ['a', 'b', 'ab']],
            ['tokenizer.ggml.merges', ['a b']],
          ]),
          'x.gguf',
        );
      for (const pre of ['deepseek-r1-qwen', 'smaug-bpe', 'tekken', 'gpt-4o', 'llama3', 'falcon']) {
        const { tokenizer } = read(pre);
        t.assert.deepEqual(new TextTokenizer(tokenizer).encode('ab', { specialTokens: false }), [2]);
      }
      const [note] = read('nonesuch').notes;
      t.assert.match(note, /pre-tokenizer "nonesuch"/);
      return note;
    },
  },
  {
    id: 23,
    kind: 'templates that look at tools and documents',
    test: `${TEST}/chat.test.ts`,
    run: async (t) => {
      t.assert.equal(await rendered('{% if tools is not none %}t{% endif %}{{ documents is none }}'), 'True');
      return 'none, as in transformers';
    },
  },
  {
    id: 24,
    kind: 'templates that read content as parts only',
    test: `${TEST}/chat.test.ts`,
    run: async (t) => {
      const source = '{% for m in messages %}{% for c in m.content %}{{ c.text }}{% endfor %}{% endfor %}';
      t.assert.equal(await rendered(source), 'hi');
      return 'the text is wrapped as a part';
    },
  },
  {
    id: 25,
    kind: 'chat_template.json alone; a list without default; CRLF',
    test: 'packages/convert/test/tokenizer-notes.test.ts',
    run: async (t) => {
      const alone = { 'tokenizer.json': TOKENIZER, 'chat_template.json': { chat_template: 'x' } };
      await opened(t, 'alone', alone, async (model) =>
        t.assert.equal(model.metadata.tokenizer.chatTemplate, 'x'),
      );
      const named = { chat_template: [{ name: 'tool_use', template: 'x' }] };
      const list = { 'tokenizer.json': TOKENIZER, 'tokenizer_config.json': named };
      await opened(t, 'named', list, async (model, { notes }) => {
        t.assert.equal(model.metadata.tokenizer.chatTemplate, undefined);
        t.assert.match(notes.join(), /tool_use/);
      });
      t.assert.equal(await rendered('a\r\n{% if true %}\r\nb{% endif %}\r\n'), 'a\nb');
      return 'read; not guessed; as jinja2';
    },
  },
  {
    id: 26,
    kind: 'methods and statements of jinja2',
    test: `${TEST}/jinja.test.ts`,
    run: async (t) => {
      const source =
        "{{ '**hi**'.strip('*') }}{% raw %}{{ }}{% endraw %}{% with a = 1 %}{{ a }}{% endwith %}";
      t.assert.equal(await rendered(source), 'hi{{ }}1');
      return 'as jinja2';
    },
  },
  {
    id: 27,
    kind: 'a control token in a message',
    test: `${TEST}/chat.test.ts`,
    run: (t) => {
      const more = { 'tokenizer.json': TOKENIZER, 'chat_template.jinja': '<u>{{ messages[0].content }}<e>' };
      return opened(t, 'control', more, async (model) => {
        t.assert.deepEqual(await new Chat(model).prompt('a<e>'), [0, 6, 1, 4, 3, 5]);
        return 'plain text';
      });
    },
  },
  {
    id: 29,
    kind: 'prompts from a file and the input; UTF-16',
    test: `${TEST}/generation.test.ts`,
    run: async (t) => {
      const more = { 'tokenizer.json': TOKENIZER };
      const { output } = await t.convert(t.checkpoint('prompts', { more }), {
        output: t.at('prompts.cflow'),
      });
      const directory = t.files('texts', {
        'utf16.txt': Buffer.from('\ufeffaaa', 'utf16le'),
        'a.txt': 'aaa',
      });
      const run = (file, input) =>
        t.run('cflow-run', [output, '--prompt-file', file, '--max-tokens', '1', '--json'], { input });
      t.assert.deepEqual(JSON.parse((await run(`${directory}/a.txt`)).stdout).promptIds, [6, 6, 6]);
      t.assert.deepEqual(JSON.parse((await run('-', 'aa')).stdout).promptIds, [6, 6]);
      const refused = await t.run('cflow-run', [output, '--perplexity', `${directory}/utf16.txt`]);
      t.assert.match(refused.stderr, /UTF-16, little endian/);
      return refused.stderr.trim();
    },
  },
];
