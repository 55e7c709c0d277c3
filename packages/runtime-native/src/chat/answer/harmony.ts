/** Answers in the harmony format of gpt-oss: messages with a channel and a recipient each. */
import { firstOf, held } from './markers.js';
import type { AnswerParser, AnswerPart } from './parts.js';
import { callId } from './tool-calls.js';

const MESSAGE = '<|message|>';
/** What ends the body of a message. */
const ENDS = ['<|end|>', '<|call|>', '<|return|>', '<|start|>', '<|channel|>'] as const;
const HEADER_STARTS = ['<|start|>', '<|channel|>', ' to=', 'assistant', MESSAGE] as const;

/** Every marker of the format. */
export const HARMONY_MARKERS: ReadonlySet<string> = new Set([MESSAGE, ...ENDS, '<|constrain|>']);

interface Header {
  readonly kind: 'content' | 'reasoning' | 'tool_call';
  readonly name: string;
}

/** The prompt ends with `<|start|>assistant`: an answer begins with the rest of a header. */
export class HarmonyParser implements AnswerParser {
  #text = '';
  /** Of the message whose body is read; undefined while a header is. */
  #header: Header | undefined;

  push(text: string): AnswerPart[] {
    this.#text += text;
    const parts: AnswerPart[] = [];
    while (this.#header ? this.#body(parts, this.#header) : this.#head());
    return parts;
  }

  flush(): AnswerPart[] {
    const parts = this.push('');
    if (this.#header?.kind === 'tool_call') parts.push(callOf(this.#header, this.#text));
    else if (this.#text !== '') parts.push({ kind: this.#header?.kind ?? 'content', text: this.#text });
    this.#text = '';
    return parts;
  }

  #head(): boolean {
    // Text without a header is for the user.
    if (!HEADER_STARTS.some((start) => start.startsWith(this.#text) || this.#text.startsWith(start))) {
      this.#header = { kind: 'content', name: '' };
      return true;
    }
    const at = this.#text.indexOf(MESSAGE);
    if (at < 0) return false;
    this.#header = headerOf(this.#text.slice(0, at));
    this.#text = this.#text.slice(at + MESSAGE.length);
    return true;
  }

  #body(parts: AnswerPart[], header: Header): boolean {
    const found = firstOf(this.#text, ENDS);
    const end = found ? found.at : this.#text.length - held(this.#text, ENDS);
    if (header.kind !== 'tool_call') {
      if (end > 0) parts.push({ kind: header.kind, text: this.#text.slice(0, end) });
      this.#text = this.#text.slice(end);
    }
    if (!found) return false;
    if (header.kind === 'tool_call') {
      parts.push(callOf(header, this.#text.slice(0, end)));
      this.#text = this.#text.slice(end);
    }
    // <|start|> and <|channel|> belong to the next header.
    if (!HEADER_STARTS.some((start) => start === found.marker))
      this.#text = this.#text.slice(found.marker.length);
    this.#header = undefined;
    return this.#text !== '';
  }
}

function headerOf(text: string): Header {
  const [, recipient] = /\bto=([^\s<]+)/.exec(text) ?? [];
  const [, channel] = /<\|channel\|>\s*(\w+)/.exec(text) ?? [];
  if (recipient !== undefined && recipient !== 'user' && recipient !== 'all')
    return { kind: 'tool_call', name: recipient.replace(/^functions\./, '') };
  return { kind: channel === 'analysis' ? 'reasoning' : 'content', name: '' };
}

const callOf = ({ name }: Header, body: string): AnswerPart => ({
  kind: 'tool_call',
  call: { id: callId(), name, arguments: body.trim() || '{}' },
});
