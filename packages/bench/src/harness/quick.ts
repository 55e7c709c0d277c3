/** What a folder that measures gives to the scorecard, and what it is given. */
import type { Measured } from './result.js';

export interface MeasureContext {
  /** A .cflow of the bundled model, or of the one that was named. */
  readonly model: string;
  /** The checkpoint that it was made of; absent where a .cflow was named. */
  readonly checkpoint?: string | undefined;
  /** For files, which are removed afterwards. */
  readonly directory: string;
  /** That compute. */
  readonly threads: number;
  /** Whether seconds are all there is. */
  readonly quick: boolean;
}

/** `measureQuick` of a folder's command.ts. */
export type Measure = (context: MeasureContext) => Promise<Measured>;
