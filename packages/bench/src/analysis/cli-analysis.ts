/** `cflow-bench critical-path` and `structure`: what follows from shapes and layout alone. */
import { DTYPE_NAMES, type Dtype } from '@cflow/format';
import { type Builder, print, SHARED } from '../harness/cli-common.js';
import { save } from '../harness/save.js';
import { measuredText } from '../report/text.js';
import { criticalPaths, pathMeasured } from './critical-path.js';
import { fileStructure } from './structure.js';

export function pathOptions(y: Builder) {
  return y
    .option('save', SHARED.save)
    .option('dtype', { choices: DTYPE_NAMES, default: 'q4_0' as Dtype, describe: 'of the weights' });
}

export async function runCriticalPath(
  args: Awaited<ReturnType<ReturnType<typeof pathOptions>['parse']>>,
): Promise<void> {
  const measured = pathMeasured(criticalPaths(args.dtype));
  await save('critical-path', args, () => measured);
  await print(args, measured, ({ tables }) => measuredText({ metrics: [], tables }));
}

export function structureOptions(y: Builder) {
  return y.positional('model', SHARED.model).option('save', SHARED.save);
}

export async function runStructure(
  args: Awaited<ReturnType<ReturnType<typeof structureOptions>['parse']>>,
): Promise<void> {
  const measured = await fileStructure(args.model);
  await save('structure', args, () => measured);
  await print(args, measured, measuredText);
}
