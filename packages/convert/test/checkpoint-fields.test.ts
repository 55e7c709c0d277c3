/** Fields of a checkpoint's documents that are not what they may be: the place, the value and what is expected. */
import { directory } from '@cflow/test-kit/checkpoint';
import { describe, expect, it } from 'vitest';
import { dryRun } from '../src/index.js';
import { llamaFiles } from './cli-fixture.js';

const { 'config.json': CONFIG, ...WEIGHTS } = llamaFiles();

async function dry(config: object, more: Record<string, object> = {}) {
  const source = await directory({ ...WEIGHTS, 'config.json': { ...CONFIG, ...config }, ...more });
  return dryRun({ source });
}

const invalid = (message: string) => ({
  code: 'CONFIG_INVALID',
  message: expect.stringContaining(message),
});

describe('token ids', () => {
  it.each([
    [{ eos_token_id: [2, '3'] }, 'eos_token_id[1]: is "3", expected a whole number'],
    [{ eos_token_id: [2, null] }, 'eos_token_id[1]: is null, expected a whole number'],
    [{ eos_token_id: true }, 'eos_token_id: is true, expected a whole number or a list of them'],
    [{ eos_token_id: '2' }, 'eos_token_id: is "2", expected a whole number or a list of them'],
    [{ eos_token_id: 1.5 }, 'eos_token_id: is 1.5, expected'],
    [{ bos_token_id: [1] }, 'bos_token_id: is [1], expected a whole number'],
  ])('%j', async (fields, message) => {
    await expect(dry(fields)).rejects.toMatchObject(invalid(`config.json: ${message}`));
    await expect(dry({}, { 'generation_config.json': fields })).rejects.toMatchObject(
      invalid(`generation_config.json: ${message}`),
    );
  });

  it('may be absent, null, one or several', async () => {
    for (const eos_token_id of [null, 2, [], [2, 3]]) {
      expect(await dry({ bos_token_id: null, eos_token_id })).toMatchObject({ weightsPresent: true });
    }
  });
});

describe('quantization_config', () => {
  it.each([
    ['fp8', 'quantization_config: is "fp8", an object is expected'],
    [true, 'quantization_config: is true, an object is expected'],
    [{ quant_method: 8 }, 'quantization_config.quant_method: is 8, expected a text'],
    [
      { quant_method: 'fp8', weight_block_size: [0, 1] },
      'quantization_config.weight_block_size: is [0,1], expected two positive whole numbers',
    ],
  ])('%j', async (quantization_config, message) => {
    await expect(dry({ quantization_config })).rejects.toMatchObject(invalid(message));
  });

  it('false and null are none', async () => {
    for (const quantization_config of [false, null]) {
      expect(await dry({ quantization_config })).toMatchObject({ weightsPresent: true });
    }
  });
});

it('an index without tensors', async () => {
  const index = { 'model.safetensors.index.json': { weight_map: {} } };
  await expect(dry({}, index)).rejects.toMatchObject(invalid('weight_map: the index lists no tensors'));
});
