/** Commands without a process of their own. */
import { vi } from 'vitest';

/** Runs a command in this process; everything it writes is captured. */
export async function captured(
  main: (argv: string[]) => Promise<number>,
  argv: string[],
): Promise<{ code: number; out: string; err: string }> {
  let [out, err] = ['', ''];
  const capture = (append: (text: string) => void) => (chunk: unknown, done?: unknown) => {
    append(String(chunk));
    if (typeof done === 'function') done();
    return true;
  };
  const spies = [
    vi.spyOn(process.stdout, 'write').mockImplementation(capture((text) => (out += text)) as never),
    vi.spyOn(process.stderr, 'write').mockImplementation(capture((text) => (err += text)) as never),
  ];
  try {
    return { code: await main(argv), out, err };
  } finally {
    for (const spy of spies) spy.mockRestore();
  }
}
