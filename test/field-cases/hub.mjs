/** The Hub, its environment, and messages: what was meant, and the line to type. */

const HUB = 'packages/convert/test/hub-environment.test.ts';
const MESSAGES = 'packages/convert/test/messages.test.ts';
const OFF = { HF_TOKEN: '', HTTP_PROXY: '', http_proxy: '', ALL_PROXY: '', all_proxy: '' };

/** The one line on stderr of a command that must fail. */
async function failing(t, command, args, { code, words, env = {} }) {
  const outcome = await t.run(command, args, { env: { ...OFF, ...env } });
  t.assert.equal(outcome.code, code, outcome.stderr);
  for (const word of words) t.assert.ok(outcome.stderr.includes(word), outcome.stderr);
  return outcome.stderr.trim();
}

export default [
  {
    id: 30,
    kind: 'a token with a line break inside',
    test: HUB,
    run: async (t) => {
      const env = { HF_TOKEN: 'hf_SECRET\nSECRET' };
      const args = ['hf:acme/tiny', 'out.cflow'];
      const line = await failing(t, 'cflow-convert', args, { code: 2, words: ['HF_TOKEN'], env });
      t.assert.ok(!line.includes('SECRET'));
      return line;
    },
  },
  {
    id: 31,
    kind: 'a proxy that does not answer',
    test: HUB,
    run: (t) => {
      const env = { HTTP_PROXY: 'http://me:SECRET@127.0.0.1:1', HF_ENDPOINT: 'http://hub.example' };
      const words = ['127.0.0.1:1', 'ECONNREFUSED'];
      return failing(t, 'cflow-convert', ['hf:acme/tiny', 'out.cflow'], { code: 3, words, env });
    },
  },
  {
    id: 32,
    kind: 'paths with ~ and $NAME',
    test: HUB,
    run: (t) => {
      const env = { HF_HOME: '$PLACE/x', PLACE: t.at('expanded'), HF_HUB_OFFLINE: '1' };
      const words = ['not in the cache'];
      return failing(t, 'cflow-convert', ['hf:acme/tiny', 'out.cflow'], { code: 3, words, env });
    },
  },
  {
    id: 33,
    kind: 'no network',
    test: HUB,
    run: (t) => {
      const env = { HF_ENDPOINT: 'http://cflow-test.invalid' };
      const words = ['no connection to cflow-test.invalid', 'check the network'];
      return failing(t, 'cflow-convert', ['hf:acme/tiny', 'out.cflow'], { code: 3, words, env });
    },
  },
  {
    id: 34,
    kind: 'a Git LFS pointer as config.json',
    test: MESSAGES,
    run: (t) => {
      const pointer = 'version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n';
      const source = t.checkpoint('model', { more: { 'config.json': pointer } });
      return t.refused(t.dryRun(source), 'FORMAT_INVALID', 'config.json', 'a Git LFS pointer');
    },
  },
  {
    id: '35a',
    kind: 'a repository without hf:',
    test: MESSAGES,
    run: (t) => {
      const words = ['cflow-convert hf:Qwen/Qwen3-1.7B Qwen3-1.7B.cflow'];
      return failing(t, 'cflow-convert', ['Qwen/Qwen3-1.7B', 'out'], { code: 3, words });
    },
  },
  {
    id: '35b',
    kind: 'a misspelt option',
    test: MESSAGES,
    run: (t) => {
      const words = ['did you mean --prompt?'];
      return failing(t, 'cflow-run', ['model.cflow', '--promt', 'x'], { code: 2, words });
    },
  },
  {
    id: '35c',
    kind: 'cflow-run of a repository',
    test: MESSAGES,
    run: (t) => {
      const words = ['cflow-convert hf:acme/tiny tiny.cflow'];
      return failing(t, 'cflow-run', ['hf:acme/tiny', '--prompt', 'x'], { code: 2, words });
    },
  },
  {
    id: '35d',
    kind: 'source and output swapped',
    test: MESSAGES,
    run: (t) => {
      t.checkpoint('model');
      const words = ['cflow-convert model out.cflow'];
      return failing(t, 'cflow-convert', ['out.cflow', 'model'], { code: 2, words });
    },
  },
  {
    id: '35e',
    kind: 'a LoRA adapter',
    test: MESSAGES,
    run: (t) => {
      const adapter = { peft_type: 'LORA', base_model_name_or_path: 'acme/base' };
      t.files('lora', { 'adapter_config.json': adapter });
      const words = ['a LoRA adapter, not a model', 'merge it into acme/base'];
      return failing(t, 'cflow-convert', ['lora', 'out.cflow'], { code: 8, words });
    },
  },
  {
    id: '35f',
    kind: 'an MLX checkpoint',
    test: 'packages/convert/test/sources-quantized.test.ts',
    run: (t) => {
      t.checkpoint('mlx', { config: { quantization: { bits: 4, group_size: 64 } } });
      const words = ['already quantized (MLX, 4 bits)', 'convert the original'];
      return failing(t, 'cflow-convert', ['mlx', 'out.cflow'], { code: 8, words });
    },
  },
  {
    id: '35g',
    kind: 'a prompt in front of the model',
    test: 'packages/runtime-native/test/cli-misplaced.test.ts',
    run: (t) => {
      const words = ['cflow-run m.cflow --prompt "Once upon a time"'];
      return failing(t, 'cflow-run', ['Once upon a time', 'm.cflow'], { code: 2, words });
    },
  },
  {
    id: '35h',
    kind: '--memory 2',
    test: 'packages/runtime-native/test/cli-misplaced.test.ts',
    run: async (t) => {
      await t.convert(t.checkpoint('model'));
      const words = ['2 without a unit is 2 bytes (write 2GiB or 2GB)'];
      return failing(t, 'cflow-run', ['out.cflow', '--ids', '1', '--memory', '2'], { code: 2, words });
    },
  },
  {
    id: '35i',
    kind: '--context 100000000 of a model with 384',
    test: 'packages/runtime-native/test/cli-misplaced.test.ts',
    run: async (t) => {
      await t.convert(t.checkpoint('model', { config: { max_position_embeddings: 384 } }));
      const words = ['--context: 100000000 positions, the model has 384 (ask for 384 at most)'];
      return failing(t, 'cflow-run', ['out.cflow', '--ids', '1', '--context', '100000000'], {
        code: 12,
        words,
      });
    },
  },
  {
    id: 38,
    kind: 'RoPE scaling in the text of cflow-inspect',
    test: 'packages/inspect/test/report.test.ts',
    run: async (t) => {
      const scaling = { rope_type: 'linear', factor: 8 };
      const source = t.checkpoint('model', { config: { rope_scaling: scaling } });
      await t.convert(source);
      const { stdout } = await t.run('cflow-inspect', [t.at('out.cflow')]);
      const line = stdout.split('\n').find((text) => text.includes('scaled by 8 (linear)'));
      t.assert.ok(line, stdout);
      return line.trim();
    },
  },
];
