/** Sound files, and how tests of malformed ones change them. */

import { guardedSource, makeConfig, makeModel } from '@cflow/test-kit/models';
import { expect } from 'vitest';
import {
  type Container,
  crc32,
  type ErrorCode,
  GLOBAL_HEADER,
  type Layout,
  openModel,
  type Struct,
  VFLOW_HEADER,
} from '../src/index.js';

export const CONFIG = makeConfig({ layers: 2, denseDelay: 1, expertDelay: 1 });
export const CONTAINERS: Container[] = ['cflow', 'vflow'];
export const HEADER = { cflow: GLOBAL_HEADER, vflow: VFLOW_HEADER };
export const SOUND = {
  cflow: await makeModel(CONFIG, 'q4_0', 'cflow'),
  vflow: await makeModel(CONFIG, 'q4_0', 'vflow'),
};

const fieldAt = ({ fields }: Struct, name: string) => fields.find((field) => field.name === name)!;

/** Writes `value` into a field, of the width that it has. */
export function poke(
  bytes: Uint8Array,
  struct: Struct,
  base: number,
  name: string,
  value: number | bigint,
): void {
  const { type, offset } = fieldAt(struct, name);
  const view = new DataView(bytes.buffer);
  const at = base + offset;
  if (type === 'f32') view.setFloat32(at, Number(value), true);
  else if (type === 'u8') view.setUint8(at, Number(value));
  else if (type === 'u16') view.setUint16(at, Number(value), true);
  else if (type === 'u32') view.setUint32(at, Number(value), true);
  else view.setBigUint64(at, BigInt(value), true);
}

/** Makes the head checksum right again, so that the checks behind it are the ones tested. */
export function seal(bytes: Uint8Array, { container, regions }: Layout): Uint8Array {
  const table = regions.find(({ name }) => name === 'layer_table')!;
  const end = table.offset + table.length;
  poke(bytes, HEADER[container], 0, 'head_checksum', 0);
  poke(bytes, HEADER[container], 0, 'head_checksum', crc32(bytes.subarray(0, end)));
  return bytes;
}

export async function fails(bytes: Uint8Array, code: ErrorCode, message: string | RegExp): Promise<void> {
  const expected = typeof message === 'string' ? message : expect.stringMatching(message);
  await expect(openModel(guardedSource(bytes))).rejects.toMatchObject({
    name: 'CflowError',
    code,
    message: expected,
  });
}

export const changed = (container: Container, change: (bytes: Uint8Array, layout: Layout) => void) => {
  const { bytes, layout } = SOUND[container];
  const copy = bytes.slice();
  change(copy, layout);
  return copy;
};
