/**
 * The report's DelayedMoESource (§3.10.2): weights in the order in which the file holds them, which is the order in
 * which a delayed model asks for them. Each stripe is one contiguous read, so memory stays at a few stripes.
 */
import { type Layout, partStripes, type Region, type StreamPart, type Stripe } from '@cflow/format';
import type { CheckpointSource, FileRows } from '../sources/checkpoint.js';

/** One step of the file: an output stripe of a matrix, or a whole plain tensor. */
export interface StripeStep {
  readonly region: Region;
  readonly part: StreamPart;
  /** Absent for plain tensors, which are stored as f32 in one piece. */
  readonly stripe: Stripe | undefined;
}

export interface StripeRows extends StripeStep {
  /** [stripe.rows, cols] row-major, or all values of a plain tensor. */
  readonly rows: Float32Array;
}

/** The steps of a layout in file order; where delayed streams stand is the layout's business alone. */
export function* stripeSteps(layout: Layout): Generator<StripeStep> {
  for (const region of layout.regions) {
    for (const part of region.stream?.parts ?? []) {
      if (part.kind === 'plain') yield { region, part, stripe: undefined };
      else for (const stripe of partStripes(part)) yield { region, part, stripe };
    }
  }
}

/** Rows as values; where they also lie in a file as they are, readers may fetch them there. */
export type RowSource = Pick<CheckpointSource, 'rowsF32'> &
  Partial<Pick<CheckpointSource, 'rowsInFile' | 'storedAt'>>;

/** The weights of a checkpoint in the order of a file. */
export class DelayedMoESource {
  readonly checkpoint: RowSource;

  constructor(checkpoint: RowSource) {
    this.checkpoint = checkpoint;
  }

  /**
   * Yields every stripe of the file with its weights, one read each; the next read begins only when it is asked for.
   * @throws CflowError as CheckpointSource.rowsF32
   */
  async *stripes(layout: Layout): AsyncGenerator<StripeRows> {
    for (const step of stripeSteps(layout)) yield { ...step, rows: await this.read(step) };
  }

  /** The weights of one step, for pipelines that keep several reads in flight. */
  read({ part, stripe }: StripeStep): Promise<Float32Array> {
    if (stripe) return this.checkpoint.rowsF32(stripe.tensor.name, stripe.rowOffset, stripe.rows);
    const { tensor } = part as StreamPart & { kind: 'plain' };
    return this.checkpoint.rowsF32(tensor.name, 0, tensor.shape[0]!);
  }

  /** Where the weights of one stripe lie, for threads that read them; undefined where only `read` has them. */
  inFile({ stripe }: StripeStep): FileRows | undefined {
    return stripe && this.checkpoint.rowsInFile?.(stripe.tensor.name, stripe.rowOffset, stripe.rows);
  }
}
