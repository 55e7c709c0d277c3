/** What the native code tells of the machine. The rest of the addon takes programs and descriptors, and stays inside. */
import { type Addon, loadAddon, requireAddon } from './addon.js';

/** Instruction sets, and the speeds of memory and of a disk. */
export type NativeMachine = Pick<Addon, 'isa' | 'readBandwidth' | 'diskBandwidth'>;

function machineOf({ isa, readBandwidth, diskBandwidth }: Addon): NativeMachine {
  return { isa, readBandwidth, diskBandwidth };
}

/** Undefined where the addon has not been built or cannot be loaded. */
export function nativeMachine(): NativeMachine | undefined {
  const addon = loadAddon();
  return addon && machineOf(addon);
}

/** The same. @throws CflowError UNSUPPORTED without the addon, and why */
export function requireNativeMachine(): NativeMachine {
  return machineOf(requireAddon());
}
