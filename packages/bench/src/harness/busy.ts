/** Says on a terminal, before a measurement, that the machine does other work; result files have the load in any case. */
import { loadavg } from 'node:os';
import { writeMessage } from '@cflow/format/node';
import { threadBudget } from '@cflow/runtime-native';

/** @param load average of the last minute; also what an earlier measurement has left of it */
export async function warnIfBusy(load = loadavg()[0]!, terminal = process.stderr.isTTY): Promise<void> {
  const { threads } = await threadBudget();
  if (load <= threads || !terminal) return;
  await writeMessage(
    `the load is ${load.toFixed(1)} on ${threads} cores: other work runs, and engines that spin at barriers suffer most\n`,
  );
}
