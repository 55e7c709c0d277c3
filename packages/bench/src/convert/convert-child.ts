/** Runs cflow-convert in a process and writes its peak memory, in bytes, to descriptor 3. */
import { writeSync } from 'node:fs';
import { peakBytes } from '../harness/peak-memory.js';

const [command, ...argv] = process.argv.slice(2);
const { main } = (await import(command!)) as { main(argv: string[]): Promise<number> };
process.exitCode = await main(argv);
process.on('exit', () => writeSync(3, String(peakBytes())));
