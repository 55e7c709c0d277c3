/** What an answer is made of: text for the user, reasoning, calls of tools. */

/** A call of a function that the model asks for. */
export interface ToolCall {
  /** Of the model, or made up: nine letters and digits, which is what every template takes. */
  readonly id: string;
  readonly name: string;
  /** A JSON text, as the model wrote it. */
  readonly arguments: string;
}

/** A piece of an answer, in order. */
export type AnswerPart =
  | { readonly kind: 'content' | 'reasoning'; readonly text: string }
  | { readonly kind: 'tool_call'; readonly call: ToolCall };

/** Takes an answer apart while it is generated. */
export interface AnswerParser {
  /** What a further piece of text makes certain. No part of a marker is ever given out. */
  push(text: string): AnswerPart[];
  /** The rest, once no more text comes. */
  flush(): AnswerPart[];
}
