/** The child process of one measurement, started by `runChild`. Arguments: name of the job, its JSON, optionally a cgroup. */
import { answer, runChild } from './runner/child.js';
import { joinGroup, peakBytes } from './runner/memory.js';

/** Each loads only what it needs: other modules would count as memory of the engine. */
const JOBS: Readonly<Record<string, () => Promise<(job: never) => Promise<unknown>>>> = {
  bandwidth: async () => (await import('./runner/machine.js')).readMemory,
  convert: async () => convert,
  decode: async () => (await import('./experiments/decode/run.js')).runDecode,
  capped: async () => (await import('./experiments/capped/run.js')).runCapped,
  overlap: async () => (await import('./experiments/overlap/run.js')).runOverlap,
  logits: async () => (await import('./experiments/peers/logits.js')).runLogits,
};

/** @param command URL of the module of cflow-convert's command line */
async function convert({ command, args }: { command: string; args: string[] }) {
  const { main } = (await import(command)) as { main(argv: string[]): Promise<number> };
  process.exitCode = await main(args);
  return { peakBytes: peakBytes() };
}

const [name = '', text = '', group] = process.argv.slice(2);
await answer(name, async () => {
  const job = JSON.parse(text) as never;
  if (group === undefined) return (await JOBS[name]!())(job);
  joinGroup(group);
  return runChild(name, job);
});
