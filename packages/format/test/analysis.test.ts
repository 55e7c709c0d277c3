import { describe, expect, it } from 'vitest';
import { criticalPath, memoryEstimate, PRESETS, parseModelConfig } from '../src/index.js';

const MIB = 2 ** 20;
const path = (name: string) => criticalPath(PRESETS[name]!, 'q4_0');

describe('critical path (report Table 4.1, §6.1)', () => {
  it.each([
    ['arch1', 9, 9],
    ['arch2_4', 9, 4.5],
    ['arch2_4_sync', 9, 4.5],
    ['arch3', 9, 9],
    ['arch4', 9, 9],
    ['arch5', 14.0625, 14.0625],
  ])('%s: %d MiB to %d MiB', (name, naive, critical) => {
    const { nominal } = path(name);
    expect([nominal.naive / MIB, nominal.critical / MIB]).toEqual([naive, critical]);
    expect(nominal.reduction).toBe(naive / critical);
  });

  it('reads 16.5 MiB when fully serial', () => {
    expect(path('arch2_4').nominal.serial / MIB).toBe(16.5);
  });

  it('counts every pass over shared weights, and each weight once in unique', () => {
    const { layers, unique } = path('arch5');
    expect(layers.map(({ layer }) => layer)).toEqual([0, 0, 0, 1, 1, 1]);
    expect(unique.dense / MIB).toBe(4.6875);
  });

  it('reduces a layer of the Gemma 4 sizing from 23.7 to 15.8 MB', () => {
    const { layers, nominal } = path('gemma4_sizing');
    expect(layers).toHaveLength(30);
    expect(layers[7]!.nominal).toEqual({
      attention: 15_859_712,
      dense: 8_921_088,
      expert: 23_789_568,
      naive: 23_789_568,
      critical: 15_859_712,
    });
    expect(nominal.reduction).toBeCloseTo(1.5, 12);
  });

  it('finds the streams of the 31B model: 403 MB dense, 134 MB attention, 101 MB experts', () => {
    const { dense, attention, expert } = path('arch2_4_8k_16l').layers[0]!.nominal;
    expect([dense, attention, expert].map((bytes) => Math.round(bytes / 1e6))).toEqual([403, 134, 101]);
  });

  it('counts scales, tile headers and norms on disk', () => {
    // A full tile is 18,448 bytes. 512 × 512 = 8 tiles, 2048 × 512 = 32 tiles; a norm is 2,048 bytes.
    const { disk } = path('arch2_4').layers[0]!;
    expect(disk.attention).toBe(2048 + 4 * 8 * 18_448);
    expect(disk.dense).toBe(2048 + 3 * 32 * 18_448);
    expect(disk.expert).toBe(2 * 3 * 8 * 18_448);
  });

  it('adds routers, final norm and head to what a token reads', () => {
    const layer = 2048 + 32 * 18_448 + 2048 + 96 * 18_448 + 48 * 18_448 + 8 * 512 * 4;
    // LM head: 392 full stripes and one of 81 rows, two tiles each.
    const head = 2 * (392 * 18_448 + 16 + 81 * 8 * 18);
    expect(path('arch2_4').bytesPerToken).toBe(6 * layer + 2048 + head);
  });

  it('is nominally four bytes a weight in f32', () => {
    expect(criticalPath(PRESETS.arch2_4!, 'f32').nominal.critical).toBe(8 * 4.5 * MIB);
  });
});

describe('memory estimate', () => {
  it('covers weights, caches and buffers', () => {
    const estimate = memoryEstimate(PRESETS.arch2_4!, 'f32', 100);
    // 6 layers, keys and values of 8 · 64, 100 positions.
    expect(estimate.kvCache).toEqual({ f32: 6 * 2 * 512 * 100 * 4, f16: 6 * 2 * 512 * 100 * 2 });
    expect(estimate.weights).toBeGreaterThan(4 * 114_408_960);
    expect(estimate.weights).toBeLessThan(4.01 * 114_408_960);
    expect(estimate.workingSet).toBeGreaterThan(4 * 50_257);
    expect(estimate.workingSet).toBeLessThan(4 * 70_000);
  });

  it('needs no more positions than a sliding window', () => {
    const { layers, ...rest } = PRESETS.arch2_4!;
    const sliding = layers.map((layer, l) =>
      l < 3 ? { ...layer, attention: { ...layer.attention, slidingWindow: 10 } } : layer,
    );
    const config = parseModelConfig({ ...rest, layers: sliding });
    expect(memoryEstimate(config, 'f32', 100).kvCache.f32).toBe((3 * 10 + 3 * 100) * 2 * 512 * 4);
  });
});
