/** One line of progress on a terminal; nothing if output is redirected. */
import { fileText, rateText } from './bytes.js';

/** A line that is written over. */
export interface Progress {
  /** @param text current step, e.g. `2/5 olmoe: llama.cpp`; the line shows the time since the start in front of it */
  step(text: string): void;
  /** Counts bytes: share, rate and time left. @param what is done to them, e.g. `written` */
  bytes(what: string): (done: number, total: number) => void;
  /** Removes the line. */
  stop(): void;
}

type Terminal = Pick<NodeJS.WriteStream, 'isTTY' | 'write'>;

const CLEAR = '\r\x1b[K';
/** Faster changes cannot be read, and writing them costs time. */
const REDRAW_MS = 100;

/** @param quiet if the output is JSON */
export function progress(quiet: boolean, terminal: Terminal = process.stderr): Progress {
  if (quiet || !terminal.isTTY)
    return { step: () => undefined, bytes: () => () => undefined, stop: () => undefined };
  const started = performance.now();
  let text = '';
  let timer: NodeJS.Timeout | undefined;
  const show = () => void terminal.write(`${CLEAR}${clock(performance.now() - started)}  ${text}`);
  const step = (next: string) => {
    timer ??= setInterval(show, 1000).unref();
    text = next;
    show();
  };
  return {
    step,
    bytes(what) {
      let began: number | undefined;
      let shown = Number.NEGATIVE_INFINITY;
      return (done, total) => {
        const now = performance.now();
        began ??= now;
        if (now - shown < REDRAW_MS && done < total) return;
        shown = now;
        step(bytesText(what, done, total, now - began));
      };
    },
    stop() {
      clearInterval(timer);
      if (timer) terminal.write(CLEAR);
      timer = undefined;
    },
  };
}

/** `45 % of 17.40 GB written, 512.30 MB/s, 0:18 left`; rate and time once they are known. */
export function bytesText(what: string, done: number, total: number, ms: number): string {
  const share = total > 0 ? Math.floor((100 * done) / total) : 100;
  const head = `${share} % of ${fileText(total)} ${what}`;
  if (ms <= 0 || done <= 0) return head;
  return `${head}, ${rateText((1000 * done) / ms)}, ${clock(((total - done) * ms) / done)} left`;
}

/** `3:07`. */
function clock(ms: number): string {
  const seconds = Math.floor(ms / 1000);
  return `${Math.floor(seconds / 60)}:${String(seconds % 60).padStart(2, '0')}`;
}
