/** Files whose header is wrong, with metadata and without. */

import { makeBareModel } from '@cflow/test-kit/models';
import { describe, it } from 'vitest';
import { CONFIG, CONTAINERS, changed, fails, HEADER, poke, SOUND, seal } from './malformed.js';

describe.each(CONTAINERS)('.%s header', (container) => {
  const { layout } = SOUND[container];
  const contradiction = '(header and metadata contradict each other; convert the checkpoint again)';

  it.each([
    ['hidden_dim', 41, 'hidden_dim is 41, expected 40'],
    ['num_layers', 3, 'num_layers is 3, expected 2'],
    ['num_experts', 4, 'num_experts is 4, expected 3'],
    ['vocab_size', 131, 'vocab_size is 131, expected 130'],
    ['dense_delay', 0, 'dense_delay is 0, expected 1'],
    ['combine_style', 2, 'combine_style is 2, expected 1'],
    ['feature_flags', 8, 'feature_flags is 8, expected 0'],
    ['final_logit_softcap', Number.NaN, 'final_logit_softcap is NaN, expected 0'],
  ])('%s = %d against the metadata', async (field, value, problem) => {
    const bytes = changed(container, (copy) => {
      poke(copy, HEADER[container], 0, field, value);
      seal(copy, layout);
    });
    await fails(bytes, 'FORMAT_INVALID', `m.cflow: header: ${problem} ${contradiction}`);
  });

  it.each([
    ['quant_type', 4, 'm.cflow: quant_type: 4 is no tile dtype, known are 0 to 3'],
    [
      'quant_group',
      31,
      'm.cflow: header: quant_group is 31, expected 32 (the file is damaged; convert it again)',
    ],
    ['metadata_offset', 90, 'm.cflow: metadata: at byte 90: starts at 90, expected'],
  ])('%s = %d', async (field, value, problem) => {
    const bytes = changed(container, (copy) => poke(copy, HEADER[container], 0, field, value));
    await fails(bytes, 'FORMAT_INVALID', new RegExp(`^${problem.replace(/[()]/g, '\\$&')}`));
  });

  it('metadata of 4 GB, and longer than the file', async () => {
    const claim = (length: number) =>
      changed(container, (copy) => poke(copy, HEADER[container], 0, 'metadata_length', length));
    const at = HEADER[container].bytes;
    const over = `m.cflow: metadata: at byte ${at}: 4294967295 bytes, the limit is 268435456`;
    await fails(claim(2 ** 32 - 1), 'LIMIT_EXCEEDED', over);
    const short = new RegExp(`^m\\.cflow: metadata: at byte ${at}: need 100000000 bytes, have \\d+`);
    await fails(claim(100_000_000), 'FORMAT_INVALID', short);
  });

  describe('without metadata', () => {
    const bare = (field: string, value: number) => {
      const made = makeBareModel(CONFIG, 'q4_0', container);
      poke(made.bytes, HEADER[container], 0, field, value);
      return seal(made.bytes, made.layout);
    };
    const remedy = "(a model that differs from the report's needs metadata; convert the checkpoint again)";

    it.each([
      [
        'combine_style',
        7,
        'FORMAT_INVALID',
        'm.cflow: combine_style: 7 is no combine style, known are 0 to 6',
      ],
      [
        'sliding_window',
        512,
        'FORMAT_INVALID',
        `m.cflow: header: sliding_window is 512, expected 0 ${remedy}`,
      ],
      [
        'global_head_dim',
        16,
        'FORMAT_INVALID',
        `m.cflow: header: global_head_dim is 16, expected 8 ${remedy}`,
      ],
      ['feature_flags', 128, 'FORMAT_INVALID', `m.cflow: header: feature_flags is 128, expected 0 ${remedy}`],
      [
        'metadata_offset',
        64,
        'FORMAT_INVALID',
        'm.cflow: metadata: at byte 64: no bytes at 64, expected offset 0',
      ],
    ] as const)('%s = %d', async (field, value, code, message) => {
      await fails(bare(field, value), code, message);
    });

    it.each([
      ['num_layers', 0],
      ['top_k', 9],
      ['num_kv_heads', 3],
      ['hidden_dim', 0],
      ['final_logit_softcap', Number.NaN],
      ['final_logit_softcap', -1],
    ])('%s = %d is no valid configuration', async (field, value) => {
      await fails(bare(field, value), 'CONFIG_INVALID', /^m\.cflow: not a valid model configuration: /);
    });

    it('65,535 layers in a small file', async () => {
      const message = /^m\.cflow: num_layers: 65535 layers need a table of 4194240 bytes, the file has \d+$/;
      await fails(bare('num_layers', 65_535), 'FORMAT_INVALID', message);
    });

    it('1,100 layers of 255 experts in a small file', async () => {
      const made = makeBareModel(CONFIG, 'q4_0', container);
      for (const [field, value] of [
        ['num_layers', 1_100],
        ['num_experts', 255],
      ] as const)
        poke(made.bytes, HEADER[container], 0, field, value);
      await fails(
        made.bytes,
        'LIMIT_EXCEEDED',
        /^m\.cflow: config\.layers: 283803 streams, the limit is 262144$/,
      );
    });
  });
});
