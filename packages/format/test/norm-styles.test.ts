/** A style of norms is a row: which tensors there are and where the steps stand follows from it, written out here by hand. */

import { tiny } from '@cflow/test-kit/plan-configs';
import { expect, test } from 'vitest';
import { buildPlan, modelTensors, type NormStyle } from '../src/index.js';

const ATTENTION = ['attn_norm', 'attn_post_norm'];
const FFN = ['ffn_norm', 'ffn_post_norm'];
const STYLES: Readonly<Record<NormStyle, readonly string[]>> = {
  pre: [ATTENTION[0]!, FFN[0]!],
  post: [ATTENTION[1]!, FFN[1]!],
  sandwich: [...ATTENTION, ...FFN],
};

test.each(Object.entries(STYLES))(
  '%s has the norms %j, and computes them in this order',
  (style, expected) => {
    const norms = style as NormStyle;
    const plain = tiny(['dense'], { combineStyle: 'sequential' });
    const config = { ...plain, layers: plain.layers.map((layer) => ({ ...layer, norms })) };
    const names = expected.map((name) => `layers.0.${name}.weight`);
    const stored = modelTensors(config).map(({ name }) => name);
    expect(stored.filter((name) => /^layers\.0\.\w+_norm\./.test(name))).toEqual(names);
    const steps = buildPlan(config, { transfers: 'none' }).steps.filter(({ op }) => op === 'rmsNorm');
    expect(steps.flatMap((step) => ('weight' in step && step.weight ? [step.weight] : []))).toMatchObject(
      [...names, 'norm.weight'].map((tensor) => ({ tensor })),
    );
  },
);
