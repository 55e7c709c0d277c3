/** `cflow-bench quality`. */
import { type Builder, count, mega, print, SHARED, table, threadsOf } from '../harness/cli-common.js';
import { type Measured, metric } from '../harness/result.js';
import { save } from '../harness/save.js';
import { benchQuality, type QualityReport } from './quality-bench.js';

export function qualityOptions(y: Builder) {
  return y
    .positional('source', { type: 'string', demandOption: true, describe: 'checkpoint directory' })
    .positional('texts', { ...SHARED.texts, demandOption: true })
    .option('stories', { type: 'number', describe: 'how many texts [default: all]' })
    .option('arithmetic', {
      choices: ['f32', 'q8'] as const,
      default: 'f32' as const,
      describe: 'f32: the cost of the weights alone; q8: with 8-bit activations',
    })
    .option('threads', SHARED.threads)
    .option('save', SHARED.save);
}

export async function runQuality(
  args: Awaited<ReturnType<ReturnType<typeof qualityOptions>['parse']>>,
): Promise<void> {
  const { source, texts, arithmetic, stories, threads } = args;
  const report = await benchQuality({
    source,
    texts,
    arithmetic,
    ...(stories === undefined ? {} : { stories: count('stories', stories, 2 ** 32) }),
    threads: await threadsOf(threads),
  });
  await save('quality', args, () => qualityMeasured(report));
  await print(args, report, describeQuality);
}

function qualityMeasured({ rows }: QualityReport): Measured {
  return {
    metrics: rows.flatMap(({ weights, perplexity, divergence: { kl, sameToken } }) => [
      metric(`${weights}: perplexity`, '', 'lower', [perplexity]),
      metric(`${weights}: KL from f32`, 'nats', 'lower', [kl]),
      metric(`${weights}: same token as f32`, '%', 'higher', [100 * sameToken]),
    ]),
  };
}

function describeQuality({ model, arithmetic, stories, predictedTokens, rows }: QualityReport): string {
  const cells = rows.map(({ fileBytes, nats, perplexity, divergence: { kl, sameToken }, cost }) => [
    mega(fileBytes),
    nats.toFixed(4),
    perplexity.toFixed(3),
    kl.toFixed(5),
    `${(100 * sameToken).toFixed(1)} %`,
    `${cost < 0 ? '' : '+'}${(100 * cost).toFixed(2)} %`,
  ]);
  const numbers = table([['MB', 'nats/token', 'perplexity', 'KL from f32', 'same token', 'cost'], ...cells]);
  const names = ['weights', ...rows.map(({ weights }) => weights)];
  const width = Math.max(...names.map((name) => name.length));
  return [
    `${model}: ${predictedTokens.toLocaleString('en')} tokens of ${stories} texts, ${arithmetic} arithmetic`,
    ...names.map((name, i) => `${name.padEnd(width)}  ${numbers[i]}`),
  ].join('\n');
}
