/** What the next step of a batch passes: pure, so that its rules can be tested without a model. */

/** What a sequence still has to pass. */
export interface Waiting {
  /** Tokens that are left of the run. */
  readonly left: number;
  /** Whether the run is one token, which decoding passes; the rest are prompts. */
  readonly decodes: boolean;
}

/** How many tokens a step may have. */
export interface StepLimits {
  /** Tokens of prompts in a step that decodes as well: they are what streams wait for. At least 2. */
  readonly stepTokens: number;
  /** Tokens of prompts in a step where nobody waits for a token. */
  readonly idleTokens: number;
}

/**
 * Tokens of each entry in the next step, 0 = none. Every token of decoding is in it; prompts share what a step may have
 * beside, in their order. A piece of one token would have other bits than the same token in a prompt (`Engine.runBatch`),
 * so pieces have two tokens at least.
 */
export function planStep(waiting: readonly Waiting[], { stepTokens, idleTokens }: StepLimits): number[] {
  let room = waiting.some(({ decodes }) => decodes) ? stepTokens : Math.max(stepTokens, idleTokens);
  return waiting.map(({ left, decodes }) => {
    if (decodes) return 1;
    const piece = pieceOf(left, room);
    room = Math.max(0, room - piece);
    return piece;
  });
}

/** Tokens of a prompt that has `left` tokens, where there is room for `room`; never leaves one. */
function pieceOf(left: number, room: number): number {
  if (room < 2) return 0;
  if (left <= room + 1) return left > room && room > 2 ? room - 1 : left;
  return room;
}
