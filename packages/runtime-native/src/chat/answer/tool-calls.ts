/** Bodies of tool calls, as models write them. */
import { randomInt } from 'node:crypto';
import type { ToolCall } from './parts.js';

/** The calls of a body; undefined where it is not what it should be, and so is text. */
export type ParseCalls = (body: string) => ToolCall[] | undefined;

const LETTERS = 'abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789';

/** An id for a call that came without one. */
export function callId(): string {
  return Array.from({ length: 9 }, () => LETTERS[randomInt(LETTERS.length)]).join('');
}

function json(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

const isObject = (value: unknown): value is Record<string, unknown> =>
  typeof value === 'object' && value !== null && !Array.isArray(value);

/** A call as an object: `{"name": …, "arguments" or "parameters": {…}, "id": …}`, in "function" or not. */
function callOf(value: unknown): ToolCall | undefined {
  if (!isObject(value)) return undefined;
  const {
    name,
    arguments: args = value.parameters,
    id,
  } = isObject(value.function) ? { ...value, ...value.function } : value;
  if (typeof name !== 'string' || !(isObject(args) || typeof args === 'string' || args === undefined))
    return undefined;
  return {
    id: typeof id === 'string' ? id : callId(),
    name,
    arguments: typeof args === 'string' ? args : JSON.stringify(args ?? {}),
  };
}

function all(calls: readonly (ToolCall | undefined)[]): ToolCall[] | undefined {
  return calls.length > 0 && calls.every((call) => call !== undefined) ? (calls as ToolCall[]) : undefined;
}

/** One object, or a list of them. */
export const jsonCalls: ParseCalls = (body) => all([json(body)].flat().map(callOf));

/** `<function=NAME><parameter=KEY>VALUE</parameter></function>`, as Qwen3-Coder has it; else as `jsonCalls`. */
export const taggedCalls: ParseCalls = (body) => {
  const [, name, inside] = /^\s*<function=([^>\s]+)>(.*)<\/function>\s*$/s.exec(body) ?? [];
  if (name === undefined) return jsonCalls(body);
  const pairs = [...inside!.matchAll(/<parameter=([^>\s]+)>\n?(.*?)\n?<\/parameter>/gs)].map(
    ([, key, value]) => [key!, json(value!) ?? value!] as const,
  );
  return [{ id: callId(), name, arguments: JSON.stringify(Object.fromEntries(pairs)) }];
};

/** `NAME[CALL_ID]ID[ARGS]{…}`, repeated behind further markers, or a list as `jsonCalls`. */
export const mistralCalls: ParseCalls = (body) => {
  if (/^\s*[[{]/.test(body)) return jsonCalls(body);
  const calls = body.split('[TOOL_CALLS]').map((each): ToolCall | undefined => {
    const [, name, id, args] = /^\s*([\w.-]+)\s*(?:\[CALL_ID\]\s*(\w+)\s*)?\[ARGS\](.*)$/s.exec(each) ?? [];
    if (name === undefined || !isObject(json(args!))) return undefined;
    return { id: id ?? callId(), name, arguments: args!.trim() };
  });
  return all(calls);
};

/** `NAME.call(KEY="VALUE", …)` of a built-in tool, an object, or Python to run. */
export const pythonCalls: ParseCalls = (body) => {
  const known = jsonCalls(body);
  if (known) return known;
  const [, name, list] = /^\s*(\w+)\.call\((.*)\)\s*$/s.exec(body) ?? [];
  const call = (tool: string, args: unknown) => [
    { id: callId(), name: tool, arguments: JSON.stringify(args) },
  ];
  if (name === undefined) return body.trim() === '' ? undefined : call('python', { code: body });
  const pairs = [...list!.matchAll(/(\w+)=("(?:[^"\\]|\\.)*"|[^,]*)(?:,\s*|$)/g)];
  return call(name, Object.fromEntries(pairs.map(([, key, value]) => [key, json(value!) ?? value])));
};

/** Calls of DeepSeek: a kind, a name, and JSON in a fence. */
export const deepseekCalls: ParseCalls = (body) => {
  const calls = body
    .split('<｜tool▁call▁begin｜>')
    .slice(1)
    .map((each): ToolCall | undefined => {
      const inside = each.split('<｜tool▁call▁end｜>')[0]!;
      const [, name, args] =
        /^(?:function<｜tool▁sep｜>)?([\w.-]+)\s*(?:<｜tool▁sep｜>|```json)?\s*(.*?)\s*(?:```)?\s*$/s.exec(
          inside,
        ) ?? [];
      return name !== undefined && isObject(json(args!))
        ? { id: callId(), name, arguments: args! }
        : undefined;
    });
  return all(calls);
};
