/** SHA-256 of two streams at a time. A module of its own: threads that hash import nothing else. */
import { createRequire } from 'node:module';
import { fileURLToPath } from 'node:url';

/** Same place from src/native and from dist/native. */
const ADDON_PATH = fileURLToPath(new URL('../../build/native/cflow.node', import.meta.url));

/**
 * Adds blocks of 64 bytes to two sums: `states` has the eight words of each. The longer stream goes on by itself, at half
 * the speed.
 * @throws TypeError for sizes that are no whole blocks
 */
export type Sha256Blocks = (states: Uint32Array, first: Uint8Array, second: Uint8Array) => void;

/** Undefined where there is no addon, or where the CPU has no instructions for SHA-256. */
export function sha256Blocks(): Sha256Blocks | undefined {
  try {
    return (createRequire(import.meta.url)(ADDON_PATH) as { sha256Blocks?: Sha256Blocks }).sha256Blocks;
  } catch {
    return undefined;
  }
}
