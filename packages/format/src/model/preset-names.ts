/** Names of `PRESETS`; a module of its own, so that a command line can list them without building the models. */
export const PRESET_NAMES = [
  'arch1',
  'arch2_4',
  'arch2_4_sync',
  'arch3',
  'arch4',
  'arch5',
  'arch2_4_8k_4l',
  'arch2_4_8k_16l',
  'gemma4_sizing',
] as const;
