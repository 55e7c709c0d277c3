import { describe, expect, it } from 'vitest';
import { PRESETS, parameterCount } from '../src/index.js';
import { PRESET_NAMES } from '../src/model/preset-names.js';

describe('presets', () => {
  it.each([
    ['arch2_4', 114_408_960],
    ['arch2_4_8k_4l', 8_339_939_328],
    // 2 · 50257 · 512 + 512 + 6 · (4 · 512² + 3 · 512 · 2048 + 2 · 512)
    ['arch1', 76_635_648],
    // 2 · 50257 · 640 + 640 + 2 · (4 · 640² + 3 · 640 · 2560 + 2 · 640)
    ['arch5', 77_439_360],
  ])('%s has %d parameters', (name, count) => {
    expect(parameterCount(PRESETS[name]!)).toBe(count);
  });

  it('are those whose names a command line lists', () => {
    expect(Object.keys(PRESETS)).toEqual(PRESET_NAMES);
  });

  it('has 30.9 B parameters with 16 layers', () => {
    expect((parameterCount(PRESETS.arch2_4_8k_16l!) / 1e9).toFixed(1)).toBe('30.9');
  });

  it('names every model after its key, with the delays of report Table 4.1', () => {
    const rows = Object.entries(PRESETS).map(([key, c]) => [
      key === c.name,
      c.name,
      c.combineStyle,
      c.denseDelay,
      c.expertDelay,
      c.layers.length,
    ]);
    expect(rows).toEqual([
      [true, 'arch1', 'decoupledStreams', 0, 0, 6],
      [true, 'arch2_4', 'delayedSum', 1, 2, 6],
      [true, 'arch2_4_sync', 'delayedSum', 1, 0, 6],
      [true, 'arch3', 'pipelineRegisters', 0, 0, 6],
      [true, 'arch4', 'asyncExperts', 0, 2, 6],
      [true, 'arch5', 'fixedPoint', 0, 0, 2],
      [true, 'arch2_4_8k_4l', 'delayedSum', 1, 2, 4],
      [true, 'arch2_4_8k_16l', 'delayedSum', 1, 2, 16],
      [true, 'gemma4_sizing', 'delayedSum', 1, 2, 30],
    ]);
  });
});
