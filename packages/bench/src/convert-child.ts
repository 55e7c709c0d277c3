/**
 * Runs cflow-convert in a process and writes its peak memory, in bytes, to descriptor 3. The peak is VmHWM of this
 * process alone; ru_maxrss, where there is no /proc, also counts what the parent held before the exec.
 */
import { readFileSync, writeSync } from 'node:fs';

const [command, ...argv] = process.argv.slice(2);
const { main } = (await import(command!)) as { main(argv: string[]): Promise<number> };
process.exitCode = await main(argv);
process.on('exit', () => writeSync(3, String(peakBytes())));

function peakBytes(): number {
  try {
    return 1024 * Number(/VmHWM:\s+(\d+)/.exec(readFileSync('/proc/self/status', 'utf8'))![1]);
  } catch {
    return 1024 * process.resourceUsage().maxRSS;
  }
}
