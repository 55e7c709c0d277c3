/** What a field case works with: a directory, checkpoints, the libraries and the commands as users run them. */
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { appendFileSync, mkdirSync, mkdtempSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { text } from 'node:stream/consumers';
import * as convertLibrary from '../packages/convert/dist/index.js';

const BINS = {
  'cflow-convert': 'packages/convert/bin/cflow-convert.js',
  'cflow-inspect': 'packages/inspect/bin/cflow-inspect.js',
  'cflow-run': 'packages/runtime-native/bin/cflow-run.js',
  'cflow-bench': 'packages/bench/bin/cflow-bench.js',
};

/** hidden 6, 2 heads of 4, 1 key/value head, FFN 5, vocabulary 7, 2 layers, tied. */
export const TINY_CONFIG = {
  model_type: 'llama',
  hidden_size: 6,
  intermediate_size: 5,
  num_hidden_layers: 2,
  num_attention_heads: 2,
  num_key_value_heads: 1,
  head_dim: 4,
  vocab_size: 7,
  rope_theta: 10_000,
  tie_word_embeddings: true,
};

/** Shapes of TINY_CONFIG by the names of Hugging Face. */
export const TINY_SHAPES = {
  'model.embed_tokens.weight': [7, 6],
  'model.norm.weight': [6],
  ...Object.fromEntries(
    [0, 1].flatMap((layer) =>
      Object.entries({
        'input_layernorm.weight': [6],
        'post_attention_layernorm.weight': [6],
        'self_attn.q_proj.weight': [8, 6],
        'self_attn.k_proj.weight': [4, 6],
        'self_attn.v_proj.weight': [4, 6],
        'self_attn.o_proj.weight': [6, 8],
        'mlp.gate_proj.weight': [5, 6],
        'mlp.up_proj.weight': [5, 6],
        'mlp.down_proj.weight': [6, 5],
      }).map(([name, shape]) => [`model.layers.${layer}.${name}`, shape]),
    ),
  ),
};

const BYTES = { F32: 4, BF16: 2, F16: 2, F8_E4M3: 1, U8: 1 };

/** A safetensors file. A tensor is a shape (F32, element i is i / 64), or { dtype, shape, bytes }. */
export function safetensors(tensors, metadata) {
  const header = metadata === undefined ? {} : { __metadata__: metadata };
  const chunks = [];
  let end = 0;
  for (const [name, tensor] of Object.entries(tensors)) {
    const { dtype = 'F32', shape, bytes } = Array.isArray(tensor) ? { shape: tensor } : tensor;
    const count = shape.reduce((a, b) => a * b, 1);
    const ramp = () => Buffer.from(Float32Array.from({ length: count }, (_, i) => i / 64).buffer);
    const data = bytes ?? (dtype === 'F32' ? ramp() : Buffer.alloc(count * BYTES[dtype]));
    header[name] = { dtype, shape, data_offsets: [end, end + data.length] };
    end += data.length;
    chunks.push(data);
  }
  const head = Buffer.from(JSON.stringify(header));
  const length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(head.length));
  return Buffer.concat([length, head, ...chunks]);
}

/** `root`: of the repository. The directory is the caller's to remove. */
export function makeTools(root) {
  const directory = mkdtempSync(join(tmpdir(), 'cflow-field-case-'));
  const at = (...names) => join(directory, ...names);

  /** Writes files below the directory: bytes and strings as they are, anything else as JSON. Returns its path. */
  const files = (name, contents) => {
    for (const [file, content] of Object.entries(contents)) {
      const raw = typeof content === 'string' || content instanceof Uint8Array;
      mkdirSync(dirname(at(name, file)), { recursive: true });
      writeFileSync(at(name, file), raw ? content : JSON.stringify(content));
    }
    return at(name);
  };

  return {
    assert,
    root,
    directory,
    at,
    files,
    /** A checkpoint directory: TINY_CONFIG and its tensors, each changed; `more`: further files, undefined = none. */
    checkpoint: (name, { config = {}, tensors = {}, more = {} } = {}) => {
      const held = Object.entries({ ...TINY_SHAPES, ...tensors }).filter(([, tensor]) => tensor);
      const all = {
        'config.json': { ...TINY_CONFIG, ...config },
        'model.safetensors': safetensors(Object.fromEntries(held)),
        ...more,
      };
      return files(
        name,
        Object.fromEntries(Object.entries(all).filter(([, content]) => content !== undefined)),
      );
    },
    /** A checkpoint of TINY_CONFIG's sizes with three experts of width 5 in one tensor [E, in, out]; FP8 in blocks of 2 × 2. */
    experts: (name, tensors) => {
      const { model_type: _, ...config } = TINY_CONFIG;
      const layers = Object.entries(TINY_SHAPES).filter(([own]) => !/layers\.1|mlp/.test(own));
      const held = {
        ...Object.fromEntries(layers),
        'model.layers.0.self_attn.q_norm.weight': [4],
        'model.layers.0.self_attn.k_norm.weight': [4],
        'model.layers.0.mlp.gate.weight': [3, 6],
        'model.layers.0.mlp.experts.down_proj': [3, 5, 6],
        ...tensors,
      };
      const experts = {
        num_experts: 3,
        num_experts_per_tok: 2,
        moe_intermediate_size: 5,
        num_hidden_layers: 1,
      };
      const quantization_config = { quant_method: 'fp8', weight_block_size: [2, 2] };
      return files(name, {
        'config.json': { ...config, ...experts, model_type: 'qwen3_vl_moe_text', quantization_config },
        'model.safetensors': safetensors(held),
      });
    },
    safetensors,
    /** Shapes of a checkpoint that nobody changed. */
    shapes: TINY_SHAPES,
    convert: (source, options = {}) =>
      convertLibrary.convert({ source, output: at('out.cflow'), dtype: 'f32', threads: 1, ...options }),
    /** Another form of a file that is there. */
    convertFile: (source, output) => convertLibrary.convert({ source, output, threads: 1 }),
    append: (name, bytes) => appendFileSync(at(name), bytes),
    dryRun: (source, options = {}) => convertLibrary.dryRun({ source, ...options }),
    /** The message of the error that the work must end in; `code` as in ERRORS, `words` all in the message. */
    refused: async (work, code, ...words) => {
      const error = await Promise.resolve(work).then(
        () => assert.fail(`accepted, expected ${code}`),
        (reason) => reason,
      );
      assert.equal(error.code, code, error.message);
      for (const word of words)
        assert.ok(error.message.includes(word), `"${word}" is not in: ${error.message}`);
      return error.message;
    },
    /** Runs a command to its end. */
    run: async (command, args, { env = {}, input = '' } = {}) => {
      const child = spawn(process.execPath, [join(root, BINS[command]), ...args], {
        cwd: directory,
        env: { ...process.env, ...env },
      });
      child.stdin.on('error', () => undefined).end(input);
      const code = new Promise((resolve) => child.once('close', resolve));
      const [stdout, stderr] = await Promise.all([text(child.stdout), text(child.stderr)]);
      return { code: await code, stdout, stderr };
    },
  };
}
