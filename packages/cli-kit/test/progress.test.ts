import { expect, it, onTestFinished, vi } from 'vitest';
import { bytesText, progress } from '../src/progress.js';
import { interruptible, SIGNALS } from '../src/signals.js';

function terminal(isTTY: boolean) {
  const written: string[] = [];
  const write = (text: string | Uint8Array) => written.push(String(text)) > 0;
  return { isTTY, written, write };
}

it('says share, rate and time left', () => {
  expect(bytesText('written', 1e9, 4e9, 2000)).toBe('25 % of 4.00 GB written, 500.00 MB/s, 0:06 left');
  expect(bytesText('fetched', 0, 4e9, 0)).toBe('0 % of 4.00 GB fetched');
  expect(bytesText('written', 0, 0, 0)).toBe('100 % of 0 B written');
});

it('writes one line over, at most ten times a second, and removes it', () => {
  vi.useFakeTimers({ toFake: ['performance', 'setInterval', 'clearInterval'] });
  onTestFinished(() => void vi.useRealTimers());
  const to = terminal(true);
  const line = progress(false, to);
  const written = line.bytes('written');
  written(0, 1e6);
  written(1, 1e6);
  vi.advanceTimersByTime(1000);
  written(500_000, 1e6);
  line.stop();
  vi.advanceTimersByTime(5000);
  line.stop();
  expect(to.written).toEqual([
    '\r\x1b[K0:00  0 % of 1.00 MB written',
    '\r\x1b[K0:01  0 % of 1.00 MB written',
    '\r\x1b[K0:01  50 % of 1.00 MB written, 500.00 kB/s, 0:01 left',
    '\r\x1b[K',
  ]);
});

it.each([
  [true, true],
  [false, false],
])('is silent with JSON (%s) and without a terminal', (quiet, isTTY) => {
  const to = terminal(isTTY);
  const line = progress(quiet, to);
  line.step('x');
  line.bytes('written')(1, 2);
  line.stop();
  expect(to.written).toEqual([]);
});

it.each(SIGNALS)('%s aborts the work, and is left alone afterwards', async (signal) => {
  const before = process.listenerCount(signal);
  const aborted = await interruptible(async (abort) => {
    process.emit(signal);
    return abort.aborted;
  });
  expect([aborted, process.listenerCount(signal)]).toEqual([true, before]);
});
