import type { ModelConfig } from './config.js';

export const PRESETS: Record<string, ModelConfig> = {};
