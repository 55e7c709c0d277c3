/** The claims: source, their figure, and the judge. A row per claim. */

import { significant } from '../report/text.js';
import type { Metric } from '../runner/result.js';
import {
  above,
  decided,
  EVEN,
  extremes,
  type Figures,
  medians,
  rangeText,
  type ScoreRow,
  within,
} from './judging.js';

const SIMULATED = 'caches simulated with the addresses of the kernels, no prefetcher';

/** Row-major by tiled, for each shape. */
function l1d(figures: Figures, kernel: string, what: 'misses' | 'time'): number[] {
  return medians(figures.all('l1d', new RegExp(`, ${kernel}\\b.*: ${what}, row-major by tiled$`)));
}

const CLAIMS: readonly ScoreRow[] = [
  {
    claim: '1 Only the selected experts are read',
    where: 'report §5.3',
    theirs: 'proven by structure: E/k, 4 × at 8/2, 16 × at 128/8',
    needs: ['structure', 'kernels'],
    judge(figures) {
      const ratio = figures.one('structure', /^experts stored over experts read/).median;
      const planned = figures.one('structure', /^weights a token$/).median;
      const all = figures.one('structure', /^weights a token, were all experts read/).median;
      const counted = figures.one('kernels', /: weights a token$/).median;
      const ours = `${significant(counted)} MB per token counted, ${significant(planned)} planned, ${significant(all)} with all experts; ${significant(ratio)} × fewer expert bytes`;
      // Less than planned: delayed experts of the last layers have no layer left to add to.
      return decided(counted <= planned, { ours, by: 'bytes counted by the kernels, at most those planned' });
    },
  },
  {
    claim: '2 Tiles have fewer L1d misses than row-major weights',
    where: 'report §5.4',
    theirs: 'proven: 6.72 to 7.29 × fewer misses, 1.12 to 1.36 × as fast',
    needs: ['l1d'],
    judge(figures) {
      const misses = l1d(figures, 'f32, a row at a time', 'misses');
      const [four, time] = [l1d(figures, 'f32, 4 rows', 'misses'), l1d(figures, 'f32', 'time')];
      const ours = `${rangeText(misses)} × fewer misses; ${rangeText(four)} × with our 4-row kernel, ${rangeText(time)} × as fast`;
      const by = 'misses of the report’s kernel (f32, a row at a time), every shape';
      return above(extremes(misses), EVEN, { ours, by, why: SIMULATED });
    },
  },
  {
    claim: '2b The same with int8 activations',
    where: 'this project',
    theirs: 'not claimed: the report’s kernel is f32',
    needs: ['l1d'],
    judge(figures) {
      const [misses, time] = [l1d(figures, 'q8', 'misses'), l1d(figures, 'q8', 'time')];
      const ours = `${rangeText(misses)} × fewer misses; ${rangeText(time)} × as fast`;
      return above(extremes(misses), EVEN, { ours, by: 'misses, every shape', why: SIMULATED });
    },
  },
  {
    claim: '3 SIMD kernels are faster than scalar ones',
    where: 'report §5.5',
    theirs: 'proven: within 1e-4 of scalar; speed implied',
    needs: ['kernels'],
    judge(figures) {
      const decode = figures.all('kernels', /isa=.*: decode$/);
      const [best, worst] = [decode[0]!, decode.at(-1)!];
      const name = ({ name: full }: Metric) => /isa=(\w+)/.exec(full)?.[1] ?? full;
      const ratio = significant(best.median / worst.median);
      const ours = `decode with ${name(best)} ${ratio} × that with ${name(worst)}`;
      return above(best, worst, { ours, by: 'decode, every run' });
    },
  },
  {
    claim: '4 q, k, v in one pass; gate, up in one pass',
    where: 'report §5.6',
    theirs: 'proven by structure: 3 × and 2 × fewer loads of the activation',
    needs: ['structure'],
    judge(figures) {
      const attention = figures.one('structure', /^matrices in one pass: attention/).median;
      const dense = figures.one('structure', /^matrices in one pass: dense/).median;
      const ours = `${attention} and ${dense} matrices in one pass`;
      return decided(attention === 3 && dense === 2, { ours, by: 'both: 3 and 2' });
    },
  },
  {
    claim: '5 Weights are stored in the order of use',
    where: 'report §5.7',
    theirs: 'proven by structure',
    needs: ['structure'],
    judge(figures) {
      const share = figures.one('structure', /^streams asked for in file order/).median;
      const ours = `${significant(share)} % of transitions between streams go forward in the file`;
      return decided(share === 100, { ours, by: 'every transition' });
    },
  },
  {
    claim: '6 Prefetch instructions make reads faster',
    where: 'report §5.8',
    theirs: 'refuted: ±0.1 % at 64 MB, 4 % worse at 4.7 GB',
    needs: ['storage'],
    judge(figures) {
      const direct = figures.all('storage', /, direct, .*: prefetch 1 by 0$/);
      const buffered = figures.all('storage', /, buffered, .*: prefetch 1 by 0$/);
      const ours = `${rangeText(medians(direct))} × with direct reads, ${rangeText(medians(buffered))} × through the page cache`;
      return above(runsOf([...direct, ...buffered]), EVEN, { ours, by: 'both, every run' });
    },
  },
  {
    claim: '7 Delays halve the critical path',
    where: 'report §5.9',
    theirs: 'proven by computation: 9.00 to 4.50 MB per token, 2.00 ×',
    needs: ['critical-path'],
    judge(figures) {
      const of = (name: string) => figures.one('critical-path', new RegExp(`^arch2_4: ${name}$`)).median;
      const ours = `${of('naive').toFixed(2)} to ${of('critical').toFixed(2)} MiB per token, ${of('reduction').toFixed(2)} ×`;
      const why = 'computed from the plan, without scales';
      return decided(of('reduction') === 2, { ours, by: 'the reduction: 2 ×', why });
    },
  },
  {
    claim: '7b Delays are faster with resident weights',
    where: 'report §6.1.2',
    theirs: 'not claimed: no reads to hide',
    needs: ['delays'],
    judge(figures) {
      const of = (value: string, figure: string) =>
        figures.one('delays', new RegExp(`delayAware=${value}: ${figure}`));
      const [on, off] = [of('on', 'decode'), of('off', 'decode')];
      const barriers = `${of('on', 'barriers').median} barriers per token, ${of('off', 'barriers').median} without delays`;
      const ours = `${significant(on.median / off.median)} ×; ${barriers}`;
      return above(on, off, { ours, by: 'decode, every run' });
    },
  },
  {
    claim: '8 A stage-major file is read faster',
    where: 'report §5.10',
    theirs: 'inconclusive: 461 against 466 MB/s',
    needs: ['storage'],
    judge(figures) {
      const inPlan = figures.all('storage', /, order of the plan, prefetch 0: .vflow by .cflow$/);
      const ours = `.vflow ${rangeText(medians(inPlan))} × as fast as .cflow, in plan order`;
      return above(runsOf(inPlan), EVEN, { ours, by: 'direct and buffered reads, every run' });
    },
  },
];

/** Minimum and maximum of all runs. */
function runsOf(metrics: readonly Metric[]) {
  return { min: Math.min(...metrics.map(({ min }) => min)), max: Math.max(...metrics.map(({ max }) => max)) };
}

/** Goals of this project against llama.cpp, for models with experts. */
const GOALS = { decode: 1.5, prefill: 3 };

function peerRow(model: string): ScoreRow {
  return {
    claim: `Comparison with llama.cpp: ${model}`,
    where: 'report §5.13',
    theirs: '5.94 against 4.75 tok/s, 1.25 ×, on different models',
    needs: ['peers'],
    judge(figures: Figures) {
      const of = (figure: string) => figures.one('peers', new RegExp(`^${model}: ${figure}`));
      const [decode, behind, prefill] = ['decode', 'decode in context', 'prefill'].map((figure) =>
        of(`${figure}, times`),
      ) as [Metric, Metric, Metric];
      const ours = `decode ${significant(decode.median)} × (${significant(behind.median)} × at context depth), prefill ${significant(prefill.median)} ×`;
      const reached = decode.median >= GOALS.decode && prefill.median >= GOALS.prefill;
      const goal = `goal ${GOALS.decode} × and ${GOALS.prefill} ×: ${reached ? 'reached' : 'missed'}`;
      const same = `same weights, same token at ${significant(of('same token').median)} % of positions`;
      return above(decode, EVEN, { ours, by: 'decode, every round', why: `${same}; ${goal}` });
    },
  };
}

/** The report's criteria for its open questions. */
const OPEN = { smallLayers: 50, r2: 0.7 };

const HYPOTHESES: readonly ScoreRow[] = [
  {
    claim: 'A layer adds little to the residual, so it could start early',
    where: 'report §6.3, approach A',
    theirs: 'open: holds if more than half of the layers add less than 0.05 of their input',
    needs: ['residual'],
    judge(figures) {
      const ratio = figures.one('residual', /layer's part over its input, median of layers$/);
      const small = figures.one('residual', /: layers below [\d.]+$/).median;
      const ours = `${significant(small)} % of the layers; median ${significant(ratio.median)} (${rangeText(ratio.runs)})`;
      return decided(small > OPEN.smallLayers, { ours, by: 'share of layers' });
    },
  },
  {
    claim: 'Router logits predict expert outputs',
    where: 'report §6.3, approach B',
    theirs: 'open: holds if R² is above 0.7',
    needs: ['residual'],
    judge(figures) {
      const r2 = figures.one('residual', /: R² of the router's predictor$/);
      const ours = `R² ${significant(r2.median)} (${rangeText(r2.runs)} by layer)`;
      return decided(r2.median > OPEN.r2, { ours, by: 'median of the layers' });
    },
  },
];

/** Error of the model according to the report, %. */
const MODEL_OFF = 1;

/** Experts on disk: the report's overlapped reads, PIPO's pipeline, and the expert cache. */
const TIERS: readonly ScoreRow[] = [
  {
    claim: 'Delayed experts overlap with their reads',
    where: 'report §5.14',
    theirs: '1.07 to 1.68 × relative to stalling',
    needs: ['overlap'],
    judge(figures) {
      const wins = figures.all('overlap', /: overlap by stall$/);
      const ours = `${rangeText(medians(wins))} × relative to stalling`;
      return above(runsOf(wins), EVEN, { ours, by: 'every run, every budget' });
    },
  },
  {
    claim: 'The gain of overlapping is (C + IO) / max(C, IO)',
    where: 'report §5.14',
    theirs: 'within 1 %',
    needs: ['overlap'],
    judge(figures) {
      const off = figures.all('overlap', /: model off, reading from bandwidth$/);
      const ours = `error ${rangeText(medians(off))} %`;
      const why = 'C and IO from bytes and bandwidth';
      return within(runsOf(off), MODEL_OFF, { ours, by: 'every budget', why });
    },
  },
  {
    claim: 'Ablation: overlap, transfer suite, prediction',
    where: 'PIPO §6.4',
    theirs: '1.97 × by the pipeline, + 0.44 by the transfer suite, + 0.25 by the kernel',
    needs: ['ladder'],
    judge(figures) {
      const rungs = figures.all('ladder', /^ladder: .*: decode$/);
      const steps = rungs.slice(1).map(({ name, median, runs }, before) => ({
        name: /: \+ ([^:]+)/.exec(name)?.[1],
        gain: median / rungs[before]!.median,
        runs: runs.map((rate, round) => rate / rungs[before]!.runs[round]!),
      }));
      const ours = steps.map(({ name, gain }) => `${name} ${significant(gain)} ×`).join(', ');
      return above(extremes(steps.flatMap(({ runs }) => runs)), EVEN, {
        ours: `each relative to the previous: ${ours}`,
        by: 'every step, every round',
      });
    },
  },
  {
    claim: 'LRFU and LFU have a higher hit rate than LRU',
    where: 'this project',
    theirs: 'not claimed elsewhere',
    needs: ['cache'],
    judge(figures) {
      const [recent, ours] = ['LRU', 'the engine'].map((policy) =>
        medians(figures.all('cache', new RegExp(`^${policy}\\b.*: hit rate$`))),
      );
      // Compare equal sizes: a larger cache hits more with any policy.
      const gains = ours!.map((rate, size) => rate / recent![size]!);
      const rates = `hit rates ${rangeText(ours!)} % against ${rangeText(recent!)} % of LRU`;
      return above(extremes(gains), EVEN, { ours: rates, by: 'every cache size' });
    },
  },
];

const PIPO: readonly ScoreRow[] = [
  {
    claim: 'Larger blocks are read faster',
    where: 'PIPO §5.2, §6.3',
    theirs: '8.5 against 6.5 to 7 GB/s, 1.26 ×; best block 8 to 32 MB',
    needs: ['storage'],
    judge(figures) {
      const blocks = figures.all('storage', /^blocks of .*, direct, 1 at once: read$/);
      const [smallest] = blocks as [Metric, ...Metric[]];
      const best = blocks.reduce((a, b) => (b.median > a.median ? b : a));
      const size = /^blocks of ([^,]+)/.exec(best.name)?.[1];
      const ours = `${significant(best.median)} GB/s with ${size}, ${significant(smallest.median)} with the smallest`;
      return above(best, smallest, { ours, by: 'best and smallest, every run' });
    },
  },
  {
    claim: 'GPU utilization from under 40 to over 90 %; an INT4 GPU kernel',
    where: 'PIPO §6.1, §6.4',
    theirs: '36 to 97 %; + 0.25 × by the kernel',
    needs: [],
    judge: () => ({ status: 'not testable here', ours: '-', why: 'no GPU engine' }),
  },
];

export const ROWS: readonly ScoreRow[] = [
  ...CLAIMS,
  ...['dense-1.1b', 'olmoe', 'mixtral'].map(peerRow),
  ...TIERS,
  ...HYPOTHESES,
  ...PIPO,
];
