/** Signals that ask a command to stop. */

/** Ctrl-C, `kill`, and a terminal that was closed. */
export const SIGNALS = ['SIGINT', 'SIGTERM', 'SIGHUP'] as const;

/** Runs work with an AbortSignal that aborts at the first of these signals. */
export async function interruptible<T>(work: (signal: AbortSignal) => Promise<T>): Promise<T> {
  const abort = new AbortController();
  const onSignal = () => abort.abort();
  for (const signal of SIGNALS) process.on(signal, onSignal);
  try {
    return await work(abort.signal);
  } finally {
    for (const signal of SIGNALS) process.off(signal, onSignal);
  }
}
