/** llama.cpp without repacked weights, which its bindings have no option for. */
import { execFile } from 'node:child_process';
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';

/** The buffer type that weights are repacked into: there is none. The name is that of the C++ function, mangled. */
const SOURCE = 'void *_Z35ggml_backend_cpu_repack_buffer_typev(void) { return 0; }\n';

/**
 * A shared object to be loaded before llama.cpp's own. Repacked weights are anonymous memory, all of the model, which
 * is killed at a cap below its size; weights that are not repacked stay pages of the file.
 * @returns undefined where there is no C compiler
 */
export async function noRepackLibrary(folder: string, compiler = 'cc'): Promise<string | undefined> {
  const source = join(folder, 'no-repack.c');
  const library = join(folder, 'no-repack.so');
  await writeFile(source, SOURCE);
  return promisify(execFile)(compiler, ['-shared', '-fPIC', '-o', library, source]).then(
    () => library,
    () => undefined,
  );
}
