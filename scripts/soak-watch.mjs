/** What the soak scripts watch: pauses of the event loop, and memory after a collection. */
import { readFileSync } from 'node:fs';
import { monitorEventLoopDelay, PerformanceObserver } from 'node:perf_hooks';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';

export const MIB = 2 ** 20;

/** Milliseconds that the main thread was ready to run and the system ran something else. */
function kept() {
  try {
    return Number(readFileSync(`/proc/self/task/${process.pid}/schedstat`, 'utf8').split(' ')[1]) / 1e6;
  } catch {
    return 0;
  }
}

/** The longest pauses of a stretch of work: of the event loop, and of the garbage collector within it. */
export class Pauses {
  #loop = monitorEventLoopDelay({ resolution: 1 });
  #collector = new PerformanceObserver((list) => {
    for (const { duration } of list.getEntries()) this.collection = Math.max(this.collection, duration);
  });
  collection = 0;
  /** Longest delay of one turn in which the system did not hold the thread up, ms. */
  own = 0;
  #last = performance.now();
  #kept = kept();
  #timer = setInterval(() => this.#turn(), 1);

  constructor() {
    this.#collector.observe({ entryTypes: ['gc'] });
    this.#loop.enable();
  }

  /** The same delay once more, with what the system took subtracted. */
  #turn() {
    const [now, waited] = [performance.now(), kept()];
    this.own = Math.max(this.own, now - this.#last - (waited - this.#kept));
    [this.#last, this.#kept] = [now, waited];
  }

  end() {
    clearInterval(this.#timer);
    this.#loop.disable();
    this.#collector.disconnect();
    const ms = (value) => value.toFixed(1);
    return {
      own: this.own,
      text: `event loop late by ${ms(this.#loop.max / 1e6)} ms at worst, ${ms(this.own)} ms without what other processes took; longest collection ${ms(this.collection)} ms`,
    };
  }
}

setFlagsFromString('--expose-gc');
/** A full garbage collection. */
export const collect = runInNewContext('gc');
