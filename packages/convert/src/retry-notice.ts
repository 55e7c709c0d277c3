/** Says on stderr that the Hub does not answer and is asked again: without it a command would be silent for half a minute. */
import type { Retry } from './hub/client.js';

export interface RetryNotice {
  readonly show: (retry: Retry) => void;
  /** Removes what is on a terminal. */
  readonly stop: () => void;
}

type Terminal = Pick<NodeJS.WriteStream, 'isTTY' | 'write'>;

const CLEAR = '\r\x1b[K';

/**
 * On a terminal a line that changes with each attempt; where output is collected one line, with the first.
 * @param quiet where the result is a document for programs
 */
export function retryNotice(quiet: boolean, terminal: Terminal = process.stderr): RetryNotice {
  let shown = false;
  const show = ({ problem, attempt, attempts, waitMs }: Retry) => {
    const wait = (waitMs / 1000).toFixed(1);
    if (terminal.isTTY) terminal.write(`${CLEAR}${problem}; attempt ${attempt} of ${attempts} in ${wait} s`);
    else if (!shown) terminal.write(`${problem}; up to ${attempts} attempts, with waits that double\n`);
    shown = true;
  };
  const stop = () => {
    if (shown && terminal.isTTY) terminal.write(CLEAR);
  };
  return { show: quiet ? () => undefined : show, stop };
}
