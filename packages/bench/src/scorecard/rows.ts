/** What is claimed, by whom, and what decides it here. A row for each claim. */
import { significant } from '../report/text.js';
import { type Figures, medians, rangeText } from './figures.js';
import type { SourceName } from './sources.js';

/** `not testable here`: this machine lacks what it takes. `not measured`: nobody has run the command. */
export type Status = 'proven' | 'refuted' | 'inconclusive' | 'not testable here' | 'not measured';

export interface Verdict {
  readonly status: Status;
  /** Our figure. */
  readonly ours: string;
  /** What a reader must know to believe it. */
  readonly why?: string | undefined;
}

export interface ScoreRow {
  readonly claim: string;
  /** Where theirs is written. */
  readonly where: string;
  readonly theirs: string;
  /** First of all the source that decides. */
  readonly needs: readonly [SourceName, ...SourceName[]];
  /** @throws Missing where a figure is not there */
  readonly judge: (figures: Figures) => Verdict;
}

/** Medians of two runs of one thing differ by so much without any cause. */
const NOISE = 0.03;
const proven = (ours: string, why?: string): Verdict => ({ status: 'proven', ours, why });

/** A ratio where more than 1 is a win; within the noise nothing is shown. */
function byRatio(ratio: number, ours: string, why?: string): Verdict {
  const status = ratio > 1 + NOISE ? 'proven' : ratio < 1 - NOISE ? 'refuted' : 'inconclusive';
  return { status, ours, why };
}

const REPORT_CLAIMS: readonly ScoreRow[] = [
  {
    claim: '1 Only the chosen experts are read',
    where: 'report §5.3',
    theirs: 'proven by structure: E/k, 4 × at 8/2, 16 × at 128/8',
    needs: ['structure', 'kernels'],
    judge: (figures) => {
      const ratio = figures.one('structure', /^experts stored over experts read/).median;
      const planned = figures.one('structure', /^weights a token$/).median;
      const all = figures.one('structure', /^weights a token, were all experts read/).median;
      const counted = figures.one('kernels', /weights a token$/).median;
      const ours = `${significant(ratio)} × fewer expert bytes; ${significant(counted)} MB a token counted, ${significant(all)} MB with all experts`;
      const same = Math.abs(counted / planned - 1) < 0.01;
      return same
        ? proven(ours, 'bytes counted by the kernels, not by the layout')
        : { status: 'refuted', ours };
    },
  },
  {
    claim: '2 Tiles miss less in L1d than rows',
    where: 'report §5.4',
    theirs: 'proven: 6.72 to 7.29 × fewer misses, 1.12 to 1.36 × faster',
    needs: ['l1d'],
    judge: (figures) => {
      const misses = medians(figures.all('l1d', /, f32.*: misses, row-major by tiled$/));
      const times = medians(figures.all('l1d', /: time, row-major by tiled$/));
      const ours = `${rangeText(misses, ' ×')} fewer misses with f32 activations, ${rangeText(times, ' ×')} as fast`;
      return byRatio(Math.min(...misses), ours, 'simulated caches fed by the kernels’ own addresses');
    },
  },
  {
    claim: '3 Vector kernels beat scalar ones',
    where: 'report §5.5',
    theirs: 'proven: within 1e-4 of scalar; speed implied',
    needs: ['kernels'],
    judge: (figures) => {
      const decode = figures.all('kernels', /isa=.*: decode$/);
      const [best, worst] = [decode[0]!, decode.at(-1)!];
      const ratio = best.median / worst.median;
      const name = (metric: { name: string }) => /isa=(\w+)/.exec(metric.name)?.[1] ?? metric.name;
      return byRatio(ratio, `decode with ${name(best)} ${significant(ratio)} × that with ${name(worst)}`);
    },
  },
  {
    claim: '4 q, k, v and gate, up in one pass',
    where: 'report §5.6',
    theirs: 'proven by structure: 3 × and 2 × fewer loads of the activation',
    needs: ['structure'],
    judge: (figures) => {
      const attention = figures.one('structure', /^matrices in one pass: attention/).median;
      const dense = figures.one('structure', /^matrices in one pass: dense/).median;
      const ours = `${attention} and ${dense} matrices in one pass`;
      return attention === 3 && dense === 2 ? proven(ours) : { status: 'refuted', ours };
    },
  },
  {
    claim: '5 Weights lie in the order of their use',
    where: 'report §5.7',
    theirs: 'proven by structure',
    needs: ['structure'],
    judge: (figures) => {
      const share = figures.one('structure', /^streams asked for in file order/).median;
      const ours = `${significant(share)} % of the steps from stream to stream go forward`;
      return share === 100 ? proven(ours) : { status: 'refuted', ours };
    },
  },
];

const DELAYS: readonly ScoreRow[] = [
  {
    claim: '7 Delays halve the critical path',
    where: 'report §5.9',
    theirs: 'proven by computation: 9.00 to 4.50 MB a token, 2.00 ×',
    needs: ['critical-path'],
    judge: (figures) => {
      const of = (name: string) => figures.one('critical-path', new RegExp(`^arch2_4: ${name}$`)).median;
      const ours = `${of('naive').toFixed(2)} to ${of('critical').toFixed(2)} MiB a token, ${of('reduction').toFixed(2)} ×`;
      return of('reduction') === 2
        ? proven(ours, 'computed from the plan, scales left out')
        : { status: 'refuted', ours };
    },
  },
  {
    claim: '7b The delays help with weights in memory',
    where: 'report §6.1.2',
    theirs: 'no claim: there is no window to use',
    needs: ['delays'],
    judge: (figures) => {
      const of = (value: string, figure: string) =>
        figures.one('delays', new RegExp(`delayAware=${value}: ${figure}`)).median;
      const ratio = of('on', 'decode') / of('off', 'decode');
      const ours = `${significant(ratio)} ×, ${of('on', 'barriers')} barriers a token for ${of('off', 'barriers')}`;
      return byRatio(ratio, ours);
    },
  },
];

/** Decode at an empty context and prefill of each geometry against the goals that this project has set itself. */
const GOALS = { decode: 1.5, prefill: 3 };

const PEERS: readonly ScoreRow[] = ['dense-1.1b', 'olmoe', 'mixtral'].map((model) => ({
  claim: `Head to head with llama.cpp: ${model}`,
  where: 'report §5.13',
  theirs: '5.94 against 4.75 tok/s, 1.25 ×, on different models',
  needs: ['peers'] as const,
  judge: (figures: Figures) => {
    const of = (figure: string) =>
      figures.one('peers', new RegExp(`^${model}: ${figure}, times llama.cpp`)).median;
    const [decode, behind, prefill] = [of('decode'), of('decode in context'), of('prefill')];
    const same = figures.one('peers', new RegExp(`^${model}: same token chosen`)).median;
    const ours = `decode ${significant(decode)} × (${significant(behind)} × behind the context), prefill ${significant(prefill)} ×`;
    const reached = decode >= GOALS.decode && prefill >= GOALS.prefill;
    const goal = `goal ${GOALS.decode} × and ${GOALS.prefill} ×: ${reached ? 'reached' : 'missed'}`;
    return byRatio(decode, ours, `same weights, same token at ${significant(same)} % of positions; ${goal}`);
  },
}));

export const ROWS: readonly ScoreRow[] = [...REPORT_CLAIMS, ...DELAYS, ...PEERS];
