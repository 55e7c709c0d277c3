/**
 * Keeps what the documents say about plans in step with the code: the barriers of each preset in docs/architecture.md,
 * and the step table in docs/adding-a-step.md, between `<!-- generated:NAME -->` and `<!-- /generated -->`.
 *
 *     node scripts/plan-doc.mjs           compares; exit 1 if a document is out of date
 *     node scripts/plan-doc.mjs --write   rewrites
 */
import { readFileSync, writeFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { renew } from './format-doc.mjs';

const at = (path) => fileURLToPath(new URL(`../${path}`, import.meta.url));
const code = (text) => `\`${text}\``;
const table = (head, rows) =>
  [head, head.map(() => '---'), ...rows].map((cells) => `| ${cells.join(' | ')} |`).join('\n');

/** An ordinary decoder, for comparison with the presets. */
const LLAMA = {
  name: 'a llama',
  family: 'llama',
  hiddenDim: 2048,
  vocabSize: 32_000,
  contextLength: 2048,
  normEps: 1e-5,
  combineStyle: 'sequential',
  layers: Array.from({ length: 22 }, () => ({
    attention: { heads: 32, kvHeads: 4, headDim: 64, scale: 0.125, rope: { theta: 10_000, rotaryDim: 64 } },
    ffn: { dim: 5632, activation: 'silu' },
  })),
};

function barrierTable({ PRESETS, parseModelConfig, buildPlan, barriersPerToken }) {
  const models = [...Object.entries(PRESETS), [LLAMA.name, parseModelConfig(LLAMA)]];
  const rows = models.map(([name, config]) => {
    const plan = buildPlan(config, { transfers: 'none' });
    const { length } = config.layers;
    return [
      name,
      config.iterations ? `${length} × ${config.iterations}` : length,
      `${config.denseDelay}, ${config.expertDelay}`,
      barriersPerToken(plan),
      barriersPerToken(plan, { delayAware: false }),
    ];
  });
  return table(['model', 'layers', 'delays: dense, experts', 'barriers', 'barriers, delays not used'], rows);
}

function stepTable({ STEPS, stepFields }) {
  const levels = { both: 'plan, program', plan: 'plan', program: 'program' };
  const rows = Object.entries(STEPS).map(([op, { level, runs, does }]) => {
    const fields = stepFields(op, level === 'plan' ? 'plan' : 'program').map(([name]) => code(name));
    return [code(op), levels[level], typeof runs === 'string' ? runs : 'by its size', fields.join(' '), does];
  });
  return table(['step', 'in', 'runs', 'fields', 'what it does'], rows);
}

/** The documents, and what belongs between their markers, by name. `format` is the module @cflow/format. */
export const documents = (format) =>
  [
    ['docs/architecture.md', { barriers: barrierTable(format) }],
    ['docs/adding-a-step.md', { steps: stepTable(format) }],
  ].map(([path, parts]) => {
    const text = readFileSync(at(path), 'utf8');
    return { path, text, renewed: renew(text, parts) };
  });

async function main() {
  for (const { path, text, renewed } of documents(await import('../packages/format/dist/index.js'))) {
    if (process.argv.includes('--write')) writeFileSync(at(path), renewed);
    else if (renewed !== text) {
      console.error(`${path} is out of date; run npm run docs:plan`);
      process.exitCode = 1;
    }
  }
}

if (process.argv[1] === fileURLToPath(import.meta.url)) await main();
