/** What a model file computes on the way, in both engines: the residual of each layer, router choices, final norm. */
import {
  type ByteSource,
  buildPlan,
  type ExecutionPlan,
  type ModelConfig,
  type ModelFile,
  openModel,
} from '@cflow/format';
import { openFileSource } from '@cflow/format/node';
import { loadAddon, type NativeEngineOptions, type SessionHandle } from '../src/native/addon.js';
import { type LowerOptions, lowerPlan } from '../src/native/lower.js';
import type { TracePoint } from '../src/native/trace.js';
import { Interpreter } from '../src/reference/interpreter.js';
import { FileWeightStore } from '../src/weights.js';
import { routings } from './helpers.js';

/** Of one token. */
export interface Traced {
  /** By effective layer, [hiddenDim]. */
  residuals: Float32Array[];
  /** By layer that routes: topK indices, then topK weights. */
  routings: Float32Array[];
  /** What the LM head reads, [hiddenDim]. */
  final: Float32Array;
  logits: Float32Array;
}

/** Passes tokens through a sequence that has just begun; what was traced of each. */
export type Tracer = (ids: readonly number[]) => Promise<Traced[]>;

interface Opened {
  source: ByteSource & { fd?: number; close(): Promise<void> };
  file: ModelFile;
  plan: ExecutionPlan;
  config: ModelConfig;
  points: TracePoint[];
}

async function opened<T>(path: string, work: (opened: Opened) => Promise<T>): Promise<T> {
  const source = await openFileSource(path);
  try {
    const file = await openModel(source);
    const plan = buildPlan(file.config, { transfers: 'none' });
    const final = { buffer: 'finalNorm', phase: plan.phaseCount - 1 };
    const points = [...plan.residuals, ...routings(plan), final];
    return await work({ source, file, plan, config: file.config, points });
  } finally {
    await source.close();
  }
}

/** @param buffers of the points, in their order */
function traced({ plan }: Opened, buffers: Float32Array[], logits: Float32Array): Traced {
  const layers = plan.residuals.length;
  return {
    residuals: buffers.slice(0, layers),
    routings: buffers.slice(layers, -1),
    final: buffers.at(-1)!,
    logits,
  };
}

/** Traces the interpreter over a file, all `ids` as one sequence. */
export function interpreted(path: string, ids: readonly number[]): Promise<Traced[]> {
  return opened(path, async (at) => {
    const interpreter = new Interpreter(at.plan, new FileWeightStore(at.source, at.file));
    const all: Traced[] = [];
    for (const id of ids) {
      const buffers: Float32Array[] = [];
      const onPhase = (phase: number) => {
        for (const [i, point] of at.points.entries()) {
          if (point.phase === phase) buffers[i] = interpreter.buffer(point.buffer).slice();
        }
      };
      await interpreter.step(id, { onPhase });
      all.push(traced(at, buffers, interpreter.logits.slice()));
    }
    return all;
  });
}

export type NativeOptions = Partial<NativeEngineOptions & Pick<LowerOptions, 'delayAware'>>;
const EXACT = { arithmetic: 'f32', cache: 'f32', weights: 'mapped' } as const;

/**
 * Opens the native engine over a file. `work` gets a function that starts a sequence; calls of that sequence pass
 * tokens, as one batch each.
 */
export function native<T>(
  path: string,
  options: NativeOptions,
  work: (start: () => Tracer) => Promise<T>,
): Promise<T> {
  return opened(path, async (at) => {
    const chosen = {
      ...EXACT,
      threads: 1,
      maxBatch: 64,
      isa: '',
      profile: false,
      shareShort: true,
      recordRoutings: false,
      delayAware: true,
      ...options,
    };
    const { program } = lowerPlan(at.plan, at.file, { ...chosen, trace: at.points });
    const engine = await loadAddon()!.openEngine(at.source.fd!, at.source.size, program, chosen);
    const length = program.buffers[program.output]!;
    try {
      return await work(() => {
        const session = engine.createSession();
        return async (ids) => (await rows(session, ids, length)).map((row) => split(at, row));
      });
    } finally {
      await engine.close();
    }
  });
}

async function rows(session: SessionHandle, ids: readonly number[], length: number): Promise<Float32Array[]> {
  const all = new Float32Array(ids.length * length);
  await session.run(Int32Array.from(ids), all, true);
  return ids.map((_, i) => all.subarray(i * length, (i + 1) * length));
}

function split(at: Opened, row: Float32Array): Traced {
  const lengths = new Map(at.plan.buffers.map(({ name, length }) => [name, length]));
  let from = at.config.vocabSize;
  const buffers = at.points.map(({ buffer }) => {
    const start = from;
    from += lengths.get(buffer)!;
    return row.slice(start, from);
  });
  return traced(at, buffers, row.slice(0, at.config.vocabSize));
}

/** The native engine in one batch (prefill), or token by token (decoding). */
export const PATHS = {
  batch: (path: string, ids: readonly number[], options: NativeOptions = {}) =>
    native(path, options, (start) => start()(ids)),
  'token by token': (path: string, ids: readonly number[], options: NativeOptions = {}) =>
    native(path, options, async (start) => {
      const next = start();
      const all: Traced[] = [];
      for (const id of ids) all.push(...(await next([id])));
      return all;
    }),
} as const;
export type PathName = keyof typeof PATHS;
