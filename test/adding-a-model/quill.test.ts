import { convert } from '@cflow/convert';
import { Model } from '@cflow/runtime-native';
import { directory, safetensors, type TestTensor } from '@cflow/test-kit/checkpoint';
import { expect, it } from 'vitest';
import { decoder } from '../../packages/convert/src/families/decoder.js';
import { FAMILIES, placeTensors, readModelConfig } from '../../packages/convert/src/families/index.js';
import { quill } from './quill.js';

const SIZES = { vocab_size: 7, hidden_size: 8, intermediate_size: 5, num_hidden_layers: 1 };
const CONFIG = { model_type: 'quill', ...SIZES, num_attention_heads: 2, num_key_value_heads: 1 };

it('computes what the definition of the family says', async () => {
  Object.assign(FAMILIES, { quill: decoder(quill) });
  const { family, config } = readModelConfig(CONFIG, { name: 'tiny', file: 'config.json' });
  const places = placeTensors(config, family);
  expect(places.get('layers.0.attn.q_proj.weight')?.name).toBe('decoder.blocks.0.mixer.query.weight');
  const tensors = [...places.values()].map(({ name, shape }, seed): [string, TestTensor] => {
    const values = Array.from({ length: shape.reduce((a, b) => a * b) }, (_, i) => Math.sin(seed + 1.7 * i));
    return [name, { shape: [...shape], values }];
  });
  const weights = safetensors(Object.fromEntries(tensors));
  const source = await directory({ 'config.json': CONFIG, 'model.safetensors': weights });
  await convert({ source, output: `${source}.cflow`, dtype: 'f32' });
  await using model = await Model.open(`${source}.cflow`);
  const logits: number[][] = [];
  await model.createSession().prefill([3], { onLogits: (_, values) => logits.push([...values]) });

  const weight = (name: string) =>
    tensors.find(([stored]) => `.${stored}`.endsWith(`.${name}.weight`))![1].values!;
  const plus = (a: number[], b: number[]) => a.map((value, i) => value + b[i]!);
  const dot = (a: number[], b: number[]) => a.reduce((sum, value, i) => sum + value * b[i]!, 0);
  const times = (rows: number[], x: number[]) =>
    Array.from({ length: rows.length / x.length }, (_, row) => dot(x, rows.slice(row * x.length)));
  const norm = (name: string, x: number[]) =>
    x.map((value, i) => (value / Math.sqrt(dot(x, x) / x.length + 1e-6)) * weight(name)[i]!);
  // A first token is not rotated and attends to itself alone, so that both heads give its one value.
  const x = weight('tokens').slice(3 * 8, 4 * 8);
  const value = times(weight('mixer.value'), norm('norms.0', x));
  const middle = plus(x, norm('norms.1', times(weight('mixer.out'), [...value, ...value])));
  const [gate, up] = ['gate', 'up'].map((name) => times(weight(name), norm('norms.2', middle)));
  const glu = gate!.map((g, i) => (g / (1 + Math.exp(-g))) * up![i]!);
  const last = norm('last_norm', plus(middle, norm('norms.3', times(weight('down'), glu))));
  expect(logits).toEqual([times(weight('lm_head'), last).map((value) => expect.closeTo(value, 4))]);
});
