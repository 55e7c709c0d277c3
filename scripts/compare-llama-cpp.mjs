/**
 * Holds our engine against llama.cpp on the same weights: a .cflow and the .gguf that cflow-convert wrote of it.
 * Greedy tokens, the most likely next token at every position of a text, perplexity, and tokenization, as JSON.
 *
 *   node scripts/compare-llama-cpp.mjs model.cflow model.gguf [--tokens 200] [--text documents.txt] [--documents 40]
 *     [--length 256] [--prompt 1,403] [--arithmetic f32] [--peer folder]
 *
 * llama.cpp comes through node-llama-cpp, which is no dependency of this project:
 *   npm install --no-save node-llama-cpp@3.22.1
 */
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join, resolve } from 'node:path';
import { pathToFileURL } from 'node:url';
import { parseArgs } from 'node:util';
import { Model, splitDocuments } from '@cflow/runtime-native';

const PEER = 'node-llama-cpp';
const { values: options, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    tokens: { type: 'string', default: '200' },
    text: { type: 'string' },
    documents: { type: 'string', default: '40' },
    length: { type: 'string', default: '256' },
    prompt: { type: 'string' },
    arithmetic: { type: 'string', default: 'f32' },
    threads: { type: 'string', default: '2' },
    peer: { type: 'string' },
  },
});

function fail(message) {
  process.stderr.write(`compare-llama-cpp: error: ${message}\n`);
  process.exit(2);
}

/** The peer's entry, from `--peer`, the current directory, or the packages of this project. */
async function loadPeer() {
  const folders = [options.peer && resolve(options.peer), process.cwd(), import.meta.dirname].filter(Boolean);
  for (const folder of folders) {
    const { resolve: find } = createRequire(join(folder, 'x.js'));
    for (const packages of find.paths(PEER) ?? []) {
      try {
        return await import(pathToFileURL(find(join(packages, PEER, 'dist', 'index.js'))).href);
      } catch {}
    }
  }
  return fail(
    `${PEER} is not installed (npm install --no-save ${PEER}@3.22.1, or name its folder by --peer)`,
  );
}

const argmax = (logits) => logits.reduce((best, x, i) => (x > logits[best] ? i : best), 0);

/** −ln of the probability that `logits` give to `id`. */
function loss(logits, id) {
  const most = logits[argmax(logits)];
  return Math.log(logits.reduce((sum, x) => sum + Math.exp(x - most), 0)) + most - logits[id];
}

async function openOurs(file) {
  const model = await Model.open(file, {
    engine: 'native',
    arithmetic: options.arithmetic,
    threads: Number(options.threads),
  });
  return {
    vocabSize: model.config.vocabSize,
    tokenizer: model.tokenizer,
    bos: model.config.bosTokenId ?? 0,
    close: () => model.close(),
    /** Logits at every position, or, with `more`, greedy tokens behind the prompt. */
    async logits(ids) {
      const session = model.createSession();
      const all = [];
      await session.prefill(ids, { onLogits: (_, logits) => all.push(Float32Array.from(logits)) });
      await session.close();
      return all;
    },
    async greedy(ids, count) {
      const session = model.createSession();
      await session.prefill(ids);
      const out = [];
      for (let i = 0; i < count; i++) {
        out.push(argmax(session.logits()));
        if (i + 1 < count) await session.decode(out[i]);
      }
      await session.close();
      return out;
    },
  };
}

async function openTheirs(file, contextSize, vocabSize) {
  const { getLlama, LlamaLogLevel } = await loadPeer();
  const llama = await getLlama({
    gpu: false,
    build: 'never',
    skipDownload: true,
    logLevel: LlamaLogLevel.error,
    maxThreads: Number(options.threads),
  });
  const model = await llama.loadModel({ modelPath: file });
  const context = await model.createContext({
    contextSize,
    batchSize: contextSize,
    threads: Number(options.threads),
    flashAttention: false,
  });
  const sequence = context.getSequence();
  return {
    release: llama.llamaCppRelease.release,
    close: () => llama.dispose(),
    tokenize: (text) => [...model.tokenize(text)],
    async logits(ids) {
      await sequence.clearHistory();
      const wanted = ids.map((id) => [id, { generateNext: { logits: true, options: { temperature: 0 } } }]);
      const results = await sequence.controlledEvaluate(wanted);
      return results.map(({ next }) => {
        const all = new Float32Array(vocabSize).fill(Number.NEGATIVE_INFINITY);
        for (const [id, logit] of next.logits) all[id] = logit;
        return all;
      });
    },
    async greedy(ids, count) {
      await sequence.clearHistory();
      const tokens = sequence.evaluate(ids, { temperature: 0, yieldEogToken: true });
      const out = [];
      for await (const token of tokens) {
        out.push(token);
        if (out.length === count) break;
      }
      return out;
    },
  };
}

/** Token ids to score: of the texts, or pseudo-random ones. */
function sequences({ tokenizer, vocabSize, bos }) {
  const length = Number(options.length);
  const count = Number(options.documents);
  if (options.text) {
    if (!tokenizer) fail('--text needs a model with a tokenizer');
    const documents = splitDocuments(readFileSync(options.text, 'utf8')).slice(0, count);
    return documents.map((text) => tokenizer.encode(text).slice(0, length));
  }
  let seed = 1;
  const next = () => {
    seed = (Math.imul(seed, 1_664_525) + 1_013_904_223) >>> 0;
    return Math.floor((seed / 2 ** 32) * vocabSize);
  };
  return Array.from({ length: count }, () => [bos, ...Array.from({ length: length - 1 }, next)]);
}

async function score(ours, theirs) {
  const sum = { positions: 0, agree: 0, predicted: 0, ours: 0, theirs: 0, error: 0, scale: 0 };
  for (const ids of sequences(ours)) {
    const [a, b] = [await ours.logits(ids), await theirs.logits(ids)];
    for (const [index, mine] of a.entries()) {
      sum.positions++;
      if (argmax(mine) === argmax(b[index])) sum.agree++;
      sum.error += mine.reduce((total, x, i) => total + (x - b[index][i]) ** 2, 0);
      sum.scale += mine.reduce((total, x) => total + x ** 2, 0);
      if (index + 1 === ids.length) continue;
      sum.predicted++;
      sum.ours += loss(mine, ids[index + 1]);
      sum.theirs += loss(b[index], ids[index + 1]);
    }
  }
  return sum;
}

const [cflow, gguf] = positionals;
if (!cflow || !gguf) fail('name a .cflow and a .gguf');
const ours = await openOurs(cflow);
const theirs = await openTheirs(gguf, Number(options.length) + Number(options.tokens) + 32, ours.vocabSize);
const prompt = options.prompt?.split(',').map(Number) ?? [ours.bos];
const tokens = Number(options.tokens);
const [mine, peers] = [await ours.greedy(prompt, tokens), await theirs.greedy(prompt, tokens)];
const differs = mine.findIndex((id, i) => id !== peers[i]);
const sum = await score(ours, theirs);
const perplexity = {
  ours: Math.exp(sum.ours / sum.predicted),
  llamaCpp: Math.exp(sum.theirs / sum.predicted),
};
const report = {
  llamaCpp: theirs.release,
  greedy: { tokens, same: differs < 0 ? tokens : differs, ids: mine },
  top1: { positions: sum.positions, agree: sum.agree, share: sum.agree / sum.positions },
  logitsRelativeError: Math.sqrt(sum.error / sum.scale),
  perplexity: { ...perplexity, differencePercent: 100 * Math.abs(perplexity.ours / perplexity.llamaCpp - 1) },
};
process.stdout.write(`${JSON.stringify(report, undefined, 2)}\n`);
await ours.close();
await theirs.close();
