import { CflowError } from '@cflow/format';

function interruption(): CflowError {
  return new CflowError('INTERRUPTED', 'interrupted; nothing was left at the output');
}

/** @throws CflowError INTERRUPTED once the signal was given */
export function throwIfInterrupted(signal: AbortSignal | undefined): void {
  if (signal?.aborted) throw interruption();
}

/** The result of `work`, or INTERRUPTED as soon as the signal is given, whichever is first. */
export async function orInterrupted<T>(work: Promise<T>, signal: AbortSignal | undefined): Promise<T> {
  if (!signal) return work;
  throwIfInterrupted(signal);
  return new Promise((resolve, reject) => {
    const onAbort = () => reject(interruption());
    signal.addEventListener('abort', onAbort, { once: true });
    work.then(resolve, reject).finally(() => signal.removeEventListener('abort', onAbort));
  });
}
