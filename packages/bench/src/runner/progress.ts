/** Progress line on a terminal; nothing if output is redirected. */

export interface Progress {
  /** @param text current step, e.g. `2/5 olmoe: llama.cpp` */
  step(text: string): void;
  /** Removes the line. */
  stop(): void;
}

type Terminal = Pick<NodeJS.WriteStream, 'isTTY' | 'write'>;

const CLEAR = '\r\x1b[K';

/** @param quiet if the output is JSON */
export function progress(quiet: boolean, terminal: Terminal = process.stderr): Progress {
  if (quiet || !terminal.isTTY) return { step: () => undefined, stop: () => undefined };
  const started = performance.now();
  let text = '';
  const show = () => void terminal.write(`${CLEAR}${clock(performance.now() - started)}  ${text}`);
  const timer = setInterval(show, 1000).unref();
  return {
    step(next) {
      text = next;
      show();
    },
    stop() {
      clearInterval(timer);
      terminal.write(CLEAR);
    },
  };
}

function clock(ms: number): string {
  const seconds = Math.floor(ms / 1000);
  return `${Math.floor(seconds / 60)}:${String(seconds % 60).padStart(2, '0')}`;
}
