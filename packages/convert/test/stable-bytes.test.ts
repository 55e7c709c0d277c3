/**
 * Converted files of committed checkpoints keep their bytes. A digest changes with the format, the quantizer or the
 * metadata only; the commit that changes one says why.
 */
import { createHash } from 'node:crypto';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, expect, it, vi } from 'vitest';
import { CONVERTER_VERSION, convert } from '../src/index.js';

const ROOT = fileURLToPath(new URL('../../..', import.meta.url));
const GOLDEN = 'packages/runtime-native/test/golden';
const DTYPES = ['q4_0', 'f32'] as const;
const CONTAINERS = ['cflow', 'vflow'] as const;

/** SHA-256 by checkpoint, dtype and container. */
const DIGESTS: readonly (readonly [string, Record<(typeof DTYPES)[number], readonly [string, string]>])[] = [
  [
    'models/stories-arch2_4',
    {
      q4_0: [
        '7f5c99a6088b00d3cbc088a87ef0c56cf8798303abc4ff1b38e121fc418017a5',
        '304518003a26d57527ed4d6b5e11ffc1cfd6e1f2841f7e59c7631179232e306b',
      ],
      f32: [
        'eb16408b25379968db4cbf846c27bc500a72cab22417030dff780b1314d4a0a2',
        '23fd449bc80f352267973299291e82e3f3509c91431bb7683be5e53ebdc68b15',
      ],
    },
  ],
  [
    `${GOLDEN}/arch3`,
    {
      q4_0: [
        'aaaba4e732adbc7ba12e4b2353adf0628f06f3e955ce4082fa6071c07622f60a',
        '12b720c18ad4785f4aa5c0733ac643731e04c7ec0a16eb16ee991a9775df62f7',
      ],
      f32: [
        '809be0f70a3ad534ae5d9cac8ef59ed3a2502b99bb21abb8f53edba4bebd7e84',
        '96ccdb2f8de5537a3c4b967088b248ca0a5a14c5c8cf60df041287e6061edbaf',
      ],
    },
  ],
  [
    `${GOLDEN}/arch5`,
    {
      q4_0: [
        '90219acae8996d518b8504395a275615926593c88d582c803fe96e82aafc0f0d',
        '1ed774a93b2b8a1b2521ec9b886546b7ac69e8bafd5e4293b933b7789bf9e2d2',
      ],
      f32: [
        '8f6867050d1a17dda2ae80d3f951d08b378d2eacecbc999eec6710f119e3d54a',
        '831e5ed73c27d211b2179ba3b11a1ac5498bf3788ebece163ab79d41a3c2547e',
      ],
    },
  ],
  [
    `${GOLDEN}/hf/gemma4_moe`,
    {
      q4_0: [
        '01a6bde51ff1d5bb6f46a6231cf8b574fedf60f4fc50dfe9461d3551c03b8df6',
        'f7b97d8f921a7f9afe33133e808732d43b72de32a8f01b0ef7058794fff9b385',
      ],
      f32: [
        'fec3a52f0ca2090f48265f8e66683943172276b2a90f5519ab649d800ecc130b',
        '81cb58b93d1ab3549c69c6f3ece350ac434c68366e02c0ad686bfd2c68d8bbb9',
      ],
    },
  ],
  [
    `${GOLDEN}/hf/mixtral_fused`,
    {
      q4_0: [
        '65c3e11961aae630601f3039320ba16d46e67747849d5750985de270ac3e2eec',
        '2f252286c3320b130eb2e0defb1a610eb2222337fdd3367fc5d7f2409dc5d0c1',
      ],
      f32: [
        '7fe24565b19a24b1d93bb68e3446fe3d160e82a6ff43ee9e6fe67d1a2d82398a',
        '3975cbfa79c3b1804640de0d5540ed16fbba603fa934ff54f200220f8b46b3a4',
      ],
    },
  ],
  [
    `${GOLDEN}/hf/qwen3`,
    {
      q4_0: [
        '54d31062ab923a9608ebd2e431cb6aee24b688fc946b649c0fc8a0cc773f72ba',
        'c47cffa3464c8c23ecc0f7a103c91c156fba81b9bcdea913dc2cbc12bddcaf8e',
      ],
      f32: [
        'f449f101f9efbe597be5a96e67ec1ccd4db71063b1785724bd668c23824e2264',
        '6ad37f4c0e3fcafdce498f79e84c9a29565e32819786643ea444e837f2e55e44',
      ],
    },
  ],
];

/** The version stands in the metadata: a release must not change the digests. */
vi.mock('@cflow/format/node', async (original) => ({
  ...(await original<typeof import('@cflow/format/node')>()),
  packageVersion: () => '0.1.0',
}));

const directory = mkdtempSync(join(tmpdir(), 'cflow-bytes-'));
afterAll(() => rmSync(directory, { recursive: true, force: true }));

it.each(DIGESTS)('%s converts to the same bytes', async (source, digests) => {
  expect(CONVERTER_VERSION).toBe('0.1.0');
  for (const dtype of DTYPES) {
    for (const [i, container] of CONTAINERS.entries()) {
      const output = join(directory, `${dtype}.${container}`);
      await convert({ source: join(ROOT, source), output, dtype, overwrite: true, threads: 1 });
      const digest = createHash('sha256').update(readFileSync(output)).digest('hex');
      expect(digest, `${dtype} ${container}`).toBe(digests[dtype][i]);
    }
  }
});
