import { chmodSync, mkdtempSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { crc32 } from 'node:zlib';
import { type Layout, regionOf } from '@cflow/format';
import { beforeAll, describe, expect, test } from 'vitest';
import { main } from '../src/cli.js';
import { inspectReportSchema } from '../src/schema.js';
import { buildModel, runCli, tinyConfig, toFile } from './build.js';

let bytes: Uint8Array;
let layout: Layout;
beforeAll(async () => {
  ({ bytes, layout } = await buildModel(tinyConfig()));
});

const run = (...argv: string[]) => runCli(main, argv);
const damaged = (change: (copy: Uint8Array) => Uint8Array | undefined) => {
  const copy = bytes.slice();
  return toFile(change(copy) ?? copy);
};

describe('text', () => {
  test('summary', async () => {
    const { code, out, err } = await run(toFile(bytes));
    expect({ code, err }).toEqual({ code: 0, err: '' });
    expect(out).toMatchInlineSnapshot(`
      "file         FILE
                   .cflow, q4_0 tiles, 96,024 bytes (96.02 kB)
      model        tiny (cflow), 67,880 parameters
                   2 layers, width 40, vocabulary 50, context 64
                   layers 0-1: 4 heads, 2 kv, head dim 8, full, RoPE 10,000; FFN 136 gelu; 4 experts of 24
                   gelu, top 2
      combine      delayedSum: FFN and expert outputs are added; the router reads the state after
                   attention
      dense delay  1: the FFN of layer l reads the output of layer l - 1
      expert delay 1: experts chosen in layer l are added in layer l + 1, at the latest in the last

      source       random
                   model.safetensors, 1,234 bytes, sha256 abababababab
      converter    0.1.0, dtype=q4_0, scaleSearch=false
      tokenizer    none

      stream          regions   bytes      size    share
      attention             2   6,496   6.50 kB    6.8 %
      dense                 2  27,264  27.26 kB   28.4 %
      router                2   1,280   1.28 kB    1.3 %
      experts               8  19,968  19.97 kB   20.8 %
      final norm            1     160     160 B    0.2 %
      embedding             1   1,816   1.82 kB    1.9 %
      LM head               1   1,816   1.82 kB    1.9 %
      header, tables        4     392     392 B    0.4 %
      metadata              1   1,683   1.68 kB    1.8 %
      padding              18  35,149  35.15 kB   36.6 %
      total                40  96,024  96.02 kB  100.0 %

      [MM..AAAADDDDDDDDDDDDDDDDDDDDDDDDDDDDDDD..RR..XXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXX.AAAARR..N...EEE..HH]
       A=attention D=dense R=router X=experts N=norm E=embedding H=head M=metadata .=padding
      offset      size  regions
           0   1.95 kB  header, metadata, layer table
       4,096  72.13 kB  attention 0, dense 0-1, router 0, table 0, experts 0-1 (8)
      77,824   4.80 kB  attention 1, router 1, table 1
      86,016  10.01 kB  final norm, embedding, LM head

      critical     0.016 -> 0.0078 MiB of weights a token, reduced 2.00 x by the delays
                   0.026 -> 0.013 MiB as stored, with norms, scales and tile headers
      a token      reads 47.00 kB
      memory       weights 57.42 KiB, KV cache 8 KiB in f16 at 64 positions, buffers 4.46 KiB
      "
    `);
  });

  test('verify of a sound file', async () => {
    const { code, out, err } = await run(toFile(bytes), '--verify');
    expect({ code, out, err }).toEqual({
      code: 0,
      out: `FILE: ${layout.regions.length} regions, ${bytes.length.toLocaleString('en-US')} bytes, no faults\n`,
      err: '',
    });
  });

  test('layers, experts and critical path', async () => {
    const { out } = await run(toFile(bytes), '--layers', '--experts', '--critical-path');
    expect(out).toMatchInlineSnapshot(`
      "layer  attention      MB  dense     MB  router  experts   from    MB
          0       4096  0.0032   8192  0.014   40960      2/4  45056  0.01
          1      77824  0.0032  24576  0.014   81920      2/4  61440  0.01

      layer  expert  table entry  offset  bytes
          0       0        41600   45056   2496
          0       1        41616   49152   2496
          0       2        41632   53248   2496
          0       3        41648   57344   2496
          1       0        82560   61440   2496
          1       1        82576   65536   2496
          1       2        82592   69632   2496
          1       3        82608   73728   2496

      MiB a token: nominal (weights alone), then on disk (with norms, scales and tile headers)
      layer    attn   dense  experts   naive  critical    attn  dense  experts  naive  critical
          0  0.0018  0.0078   0.0027  0.0078    0.0039  0.0031  0.013   0.0048  0.013    0.0065
          1  0.0018  0.0078   0.0027  0.0078    0.0039  0.0031  0.013   0.0048  0.013    0.0065
        sum                            0.016    0.0078                          0.026     0.013
      "
    `);
  });

  test('tiles', async () => {
    const { out } = await run(toFile(bytes), '--tiles', '1');
    expect(out).toMatchInlineSnapshot(`
      "stream              offset  matrix       layer  expert  row  col    tile  group  header
      layers.0.attention    4256  q                0       -    0    0   32x40     32  ok
      layers.0.dense        8352  gate             0       -    0    0  128x40     32  ok
      layers.1.dense       24736  gate             1       -    0    0  128x40     32  ok
      layers.0.experts.0   45056  expert_gate      0       0    0    0   24x40     32  ok
      layers.0.experts.1   49152  expert_gate      0       1    0    0   24x40     32  ok
      layers.0.experts.2   53248  expert_gate      0       2    0    0   24x40     32  ok
      layers.0.experts.3   57344  expert_gate      0       3    0    0   24x40     32  ok
      layers.1.experts.0   61440  expert_gate      1       0    0    0   24x40     32  ok
      layers.1.experts.1   65536  expert_gate      1       1    0    0   24x40     32  ok
      layers.1.experts.2   69632  expert_gate      1       2    0    0   24x40     32  ok
      layers.1.experts.3   73728  expert_gate      1       3    0    0   24x40     32  ok
      layers.1.attention   77984  q                1       -    0    0   32x40     32  ok
      embedding            90112  embedding        0       -    0    0   50x40     32  ok
      lm_head              94208  lm_head          0       -    0    0   50x40     32  ok
      "
    `);
  });

  test('no line of any section is wider than 100 columns', async () => {
    const all = ['--layers', '--experts', '--critical-path', '--tiles', '3', '--stats', '--plan', '--verify'];
    for (const flags of [[], all]) {
      const { out } = await run(toFile(bytes), ...flags);
      const lines = out.split('\n').filter((line) => !line.includes('FILE'));
      expect(lines.filter((line) => [...line].length > 100)).toEqual([]);
      expect(lines.length).toBeGreaterThan(20);
    }
  });

  test('control characters of a file do not reach the terminal', async () => {
    const evil = await buildModel(tinyConfig({ name: 'a\u001b[2Jb\nc\u202e' }));
    const { out } = await run(toFile(evil.bytes));
    expect(out).toContain('model        a\\u001b[2Jb\\u000ac\\u202e (cflow)');
    expect(out).not.toContain('\u001b');
  });

  test('help names every exit code', async () => {
    const { code, out } = await run('--help');
    expect(code).toBe(0);
    for (const line of [
      '--critical-path',
      '    0  Done',
      '    2  The command',
      '   13  Checksums',
      '   70  A defect',
    ]) {
      expect(out).toContain(line);
    }
  });
});

describe('--json', () => {
  test('is a valid report with everything that the head says', async () => {
    const { code, out } = await run(toFile(bytes), '--json');
    expect(code).toBe(0);
    const report = inspectReportSchema.parse(JSON.parse(out));
    expect(report.plan).toContain('embed_tokens.weight[token]');
    expect(report.experts).toHaveLength(8);
    expect(report.origin.source.files[0]!.sha256).toBe('ab'.repeat(32));
    expect([report.tiles, report.verify, report.stats]).toEqual([undefined, undefined, undefined]);
  });

  test('with tiles, verify and stats', async () => {
    const { out } = await run(toFile(bytes), '--json', '--tiles', '2', '--verify', '--stats');
    const report = inspectReportSchema.parse(JSON.parse(out));
    expect(report.verify).toEqual({ ok: true, checkedBytes: bytes.length, faults: [] });
    expect(report.stats).toHaveLength(47);
    expect(report.tiles!.every(({ wrong }) => wrong.length === 0)).toBe(true);
  });

  test('the schema rejects what is not a report', async () => {
    const { out } = await run(toFile(bytes), '--json');
    const report = JSON.parse(out);
    expect(inspectReportSchema.safeParse({ ...report, surplus: 1 }).success).toBe(false);
    expect(inspectReportSchema.safeParse({ ...report, sizes: [{ kind: 'other' }] }).success).toBe(false);
  });

  test('faults are in the document, and the exit code is 13', async () => {
    const { offset } = regionOf(layout, 'embedding');
    const { code, out } = await run(
      damaged((copy) => void copy.set([9], offset)),
      '--json',
      '--verify',
    );
    expect(code).toBe(13);
    expect(inspectReportSchema.parse(JSON.parse(out)).verify!.faults[0]).toEqual({
      region: 'embedding',
      offset,
      problem: 'embed_tokens.weight: TileHeader.layer_id is 9, expected 0',
    });
  });
});

describe('damaged files', () => {
  const flip = (offset: number) => damaged((copy) => void copy.set([copy[offset]! ^ 1], offset));
  const sum = (name: string) => {
    const { offset, length } = regionOf(layout, name);
    return crc32(bytes.subarray(offset, offset + length))
      .toString(16)
      .padStart(8, '0');
  };
  const sumFlipped = (name: string, at: number) => {
    const { offset, length } = regionOf(layout, name);
    const copy = bytes.slice(offset, offset + length);
    copy[at - offset]! ^= 1;
    return crc32(copy).toString(16).padStart(8, '0');
  };
  const verdict = (n: string, region: string, offset: number) =>
    `cflow-inspect: error: FILE: at byte ${offset}: ${n}, the first in ${region}` +
    ' (the file is damaged; copy or convert it again)\n';

  test('a byte of a tile header', async () => {
    const { offset } = regionOf(layout, 'lm_head');
    expect(await run(flip(offset + 2), '--verify')).toEqual({
      code: 13,
      out:
        `at byte ${offset + 2}: lm_head: lm_head.weight: TileHeader.matrix_id is 13, expected 12\n` +
        `at byte ${offset}: lm_head: checksum is ${sumFlipped('lm_head', offset + 2)}, metadata say ${sum('lm_head')}\n`,
      err: verdict('2 faults', 'lm_head', offset + 2),
    });
  });

  test('a byte of the weights', async () => {
    const { offset } = regionOf(layout, 'layers.1.experts.2');
    const at = offset + 100;
    expect(await run(flip(at), '--verify')).toEqual({
      code: 13,
      out: `at byte ${offset}: layers.1.experts.2: checksum is ${sumFlipped('layers.1.experts.2', at)}, metadata say ${sum('layers.1.experts.2')}\n`,
      err: verdict('1 fault', 'layers.1.experts.2', offset),
    });
  });

  test('a byte of padding', async () => {
    const padding = layout.regions.find(({ kind, length }) => kind === 'padding' && length > 9)!;
    const at = padding.offset + 7;
    expect(await run(flip(at), '--verify')).toEqual({
      code: 13,
      out: `at byte ${at}: ${padding.name}: padding byte is 1, not 0\n`,
      err: verdict('1 fault', padding.name, at),
    });
  });

  test('several faults are all listed', async () => {
    const places = ['embedding', 'lm_head', 'final_norm'].map((name) => regionOf(layout, name).offset + 20);
    const path = damaged((copy) => {
      for (const at of places) copy[at]! ^= 1;
      return undefined;
    });
    const { code, out, err } = await run(path, '--verify', '--stats');
    expect(code).toBe(13);
    expect(out.match(/checksum is/g)).toHaveLength(3);
    expect(err).toContain('3 faults, the first in final_norm');
  });

  test('truncated', async () => {
    const size = bytes.length;
    expect(await run(damaged((copy) => copy.subarray(0, size - 1)))).toEqual({
      code: 4,
      out: '',
      err: `cflow-inspect: error: FILE: file_size: header says ${size} bytes, the file has ${size - 1} (the file is truncated or was padded; copy or convert it again)\n`,
    });
    expect((await run(damaged((copy) => copy.subarray(0, 50)))).code).toBe(4);
    expect((await run(damaged(() => new Uint8Array(0)))).code).toBe(4);
  });

  test('wrong magic', async () => {
    expect(await run(damaged((copy) => void copy.set([0x47], 0)))).toEqual({
      code: 4,
      out: '',
      err:
        'cflow-inspect: error: FILE: magic: at byte 0: magic is "GFLOW\\u0000\\u0000\\u0000", expected ' +
        '"CFLOW\\0\\0\\0" or "VFLOW\\0\\0\\0" (this is not a cflow file)\n',
    });
  });

  test('another version', async () => {
    const { code, err } = await run(damaged((copy) => void copy.set([7], 8)));
    expect(code).toBe(5);
    expect(err).toBe(
      'cflow-inspect: error: FILE: version: at byte 8: version 7 of the format, this cflow reads versions 5 and 6 (use a newer cflow)\n',
    );
  });

  test('a byte of the metadata', async () => {
    const { offset, length } = regionOf(layout, 'metadata');
    const { code, err } = await run(flip(offset + length - 4));
    expect(code).not.toBe(0);
    expect(err.split('\n')).toHaveLength(2);
  });
});

describe('command line', () => {
  test.each([
    [[], 'Not enough non-option arguments: got 0, need at least 1'],
    [['a.cflow', '--bogus'], 'Unknown argument: bogus'],
    [['a.cflow', 'b.cflow'], 'Unknown argument: b.cflow'],
    [['a.cflow', '--tiles', '0'], '--tiles must be one whole number of at least 1, got 0'],
    [['a.cflow', '--tiles', 'x'], '--tiles must be one whole number of at least 1, got NaN'],
    [['a.cflow', '--tiles', '1.5'], '--tiles must be one whole number of at least 1, got 1.5'],
    [['a.cflow', '--tiles'], 'Not enough arguments following: tiles'],
  ])('%j is a usage error', async (argv, problem) => {
    expect(await run(...argv)).toEqual({
      code: 2,
      out: '',
      err: `cflow-inspect: error: ${problem} (see cflow-inspect --help)\n`,
    });
  });

  test('a missing file', async () => {
    expect(await run('no/such.cflow')).toEqual({
      code: 3,
      out: '',
      err: 'cflow-inspect: error: FILE: cannot open: ENOENT\n',
    });
  });

  test('a directory', async () => {
    const path = mkdtempSync(join(tmpdir(), 'cflow-inspect-'));
    const { code, err } = await run(path);
    expect([code, err]).toEqual([3, 'cflow-inspect: error: FILE: is a directory (name a file)\n']);
  });

  test('a file that only may be read is enough', async () => {
    const path = toFile(bytes);
    chmodSync(path, 0o444);
    expect((await run(path, '--verify')).code).toBe(0);
  });

  test('a file named like a number', async () => {
    const { code, err } = await run('123');
    expect([code, err]).toEqual([3, 'cflow-inspect: error: 123: cannot open: ENOENT\n']);
  });
});
