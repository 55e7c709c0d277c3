/** Answers whose reasoning and calls stand between markers. */
import { firstOf, held } from './markers.js';
import type { AnswerParser, AnswerPart } from './parts.js';
import type { ParseCalls } from './tool-calls.js';

/** A part of an answer between two markers. */
export interface Section {
  /** Undefined: the answer begins with it, and it begins with `{`. */
  readonly open?: string | undefined;
  /** Undefined: it ends with the answer. */
  readonly close?: string | undefined;
  /** How the body becomes calls; absent: it is reasoning. */
  readonly calls?: ParseCalls | undefined;
}

/** How an answer goes on. */
export interface SectionsOptions {
  readonly sections: readonly Section[];
  /** A section that the prompt has opened. */
  readonly opened?: Section | undefined;
}

/** Takes markers with the white space that templates put around them. */
export class SectionsParser implements AnswerParser {
  readonly #sections: readonly Section[];
  readonly #opens: readonly string[];
  #section: Section | undefined;
  #text = '';
  /** Whether white space is to be left out: at the beginning of a section, and behind one. */
  #atEdge: boolean;
  /** Whether anything has come. */
  #begun = false;

  constructor({ sections, opened }: SectionsOptions) {
    this.#sections = sections;
    this.#opens = sections.flatMap(({ open }) => (open === undefined ? [] : [open]));
    this.#section = opened;
    this.#atEdge = opened !== undefined;
  }

  push(text: string): AnswerPart[] {
    this.#text += text;
    const parts: AnswerPart[] = [];
    while (this.#step(parts));
    return parts;
  }

  flush(): AnswerPart[] {
    const parts = this.push('');
    const text = this.#text;
    this.#text = '';
    if (this.#section?.calls) this.#calls(this.#section, text, '', parts);
    else this.#emit(parts, this.#section ? text.trimEnd() : text);
    return parts;
  }

  /** Whether there may be more to do. */
  #step(parts: AnswerPart[]): boolean {
    this.#begin();
    const section = this.#section;
    const closes = section?.close === undefined ? [] : [section.close];
    const markers = section ? closes : this.#opens;
    const found = firstOf(this.#text, markers);
    if (found) {
      const before = this.#text.slice(0, found.at);
      this.#text = this.#text.slice(found.at + found.marker.length);
      if (section?.calls) this.#calls(section, before, found.marker, parts);
      else this.#emit(parts, before.trimEnd());
      this.#section = section ? undefined : this.#sections.find(({ open }) => open === found.marker);
      this.#atEdge = true;
      return true;
    }
    if (section?.calls) return false;
    // White space may belong to a marker that follows.
    const certain = this.#text.slice(0, this.#text.length - held(this.#text, markers)).trimEnd();
    this.#text = this.#text.slice(certain.length);
    this.#emit(parts, certain);
    return false;
  }

  /** An answer that begins as a call is one, as far as can be known. */
  #begin(): void {
    if (this.#begun || this.#section) return;
    const first = /\S/.exec(this.#text)?.[0];
    if (first === undefined) return;
    this.#begun = true;
    if (first === '{') this.#section = this.#sections.find(({ open }) => open === undefined);
  }

  #emit(parts: AnswerPart[], text: string): void {
    const shown = this.#atEdge ? text.trimStart() : text;
    if (shown === '') return;
    this.#atEdge = false;
    add(parts, this.#section ? 'reasoning' : 'content', shown);
  }

  #calls({ open = '', calls }: Section, body: string, close: string, parts: AnswerPart[]): void {
    const found = calls!(body);
    if (found) for (const call of found) parts.push({ kind: 'tool_call', call });
    else add(parts, 'content', open + body + close);
  }
}

function add(parts: AnswerPart[], kind: 'content' | 'reasoning', text: string): void {
  if (text !== '') parts.push({ kind, text });
}
