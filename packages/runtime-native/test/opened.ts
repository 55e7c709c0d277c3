/** Models that tests open, and that are closed after each. */
import { afterEach } from 'vitest';
import { Model, type OpenModelOptions } from '../src/index.js';

/** Opens models with `defaults`; to be called where a file's tests are described. */
export function modelOpener(defaults: OpenModelOptions = {}) {
  const opened: Model[] = [];
  afterEach(async () => {
    for (const model of opened.splice(0)) await model.close();
  });
  return async (path: string, options: OpenModelOptions = {}): Promise<Model> => {
    const model = await Model.open(path, { ...defaults, ...options });
    opened.push(model);
    return model;
  };
}
