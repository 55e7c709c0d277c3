/** What a killed export leaves is found, named and removed by the next run beside it. */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdir, readdir, writeFile } from 'node:fs/promises';
import { basename, join } from 'node:path';
import { directory, safetensors, TINY_CONFIG, tinyTensors } from '@cflow/test-kit/checkpoint';
import { expect, it } from 'vitest';
import { convert } from '../src/index.js';
import { removeOrphans, temporaryName } from '../src/targets/orphans.js';

async function endedProcess(): Promise<number> {
  const child = spawn(process.execPath, ['-e', '']);
  await once(child, 'exit');
  return child.pid!;
}

/** A temporary name as the process `pid` would give it. */
const nameOf = (target: string, pid: number) =>
  temporaryName(target).replace(`.cflow-${process.pid}-`, `.cflow-${pid}-`);

it('removes files and directories of ended processes, and leaves those of running ones and of others', async () => {
  const dir = await directory({});
  const target = join(dir, 'out.safetensors');
  const pid = await endedProcess();
  const [file, folder, mine] = [nameOf(target, pid), nameOf(target, pid), temporaryName(target)];
  await writeFile(file, Buffer.alloc(1_500_000));
  await mkdir(folder);
  await writeFile(join(folder, 'model.safetensors'), Buffer.alloc(200_000));
  await writeFile(mine, 'running');
  const foreign = '.cflow-0123456789ab.partial';
  await writeFile(join(dir, foreign), 'of another kind');
  const notes = await removeOrphans(target);
  expect(notes.sort()).toEqual(
    [
      `removed ${file}, 1.50 MB that a killed export left`,
      `removed ${folder}, 200.00 kB that a killed export left`,
    ].sort(),
  );
  expect((await readdir(dir)).sort()).toEqual([basename(mine), foreign].sort());
  expect(await removeOrphans(target)).toEqual([]);
});

it('what was removed is said of a conversion that succeeds, and of one that fails', async () => {
  const source = await directory({
    'config.json': TINY_CONFIG,
    'model.safetensors': safetensors(tinyTensors()),
  });
  const dir = await directory({}, 'out');
  const output = join(dir, 'm.cflow');
  const orphan = nameOf(output, await endedProcess());
  const note = `removed ${orphan}, 1.50 MB that a killed export left`;
  await writeFile(orphan, Buffer.alloc(1_500_000));
  await expect(convert({ source: join(dir, 'missing'), output, threads: 1 })).rejects.toMatchObject({
    code: 'NOT_READABLE',
    message: `${join(dir, 'missing')}: cannot open: ENOENT; note: ${note}`,
    details: { notes: [note] },
  });
  await writeFile(orphan, Buffer.alloc(1_500_000));
  expect((await convert({ source, output, threads: 1 })).notes[0]).toBe(note);
});
