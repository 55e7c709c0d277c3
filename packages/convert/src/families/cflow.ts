import type { ModelConfigInput } from '@cflow/format';
import type { JsonObject } from '../json.js';
import type { ConfigContext, Family } from './family.js';

/** The report's own models: config.json is a ModelConfig with a `model_type`, the tensors have their canonical names. */
export const cflow: Family = {
  modelType: 'cflow',
  configFrom: (json: JsonObject, { name }: ConfigContext) => {
    const { model_type: _, ...config } = json;
    // Checked by parseModelConfig, as every configuration is.
    return { name, family: 'cflow', ...config } as unknown as ModelConfigInput;
  },
  ignorable: [],
};
