/** Parts of an answer as one message of a conversation. */
import type { ChatMessage } from '../template.js';
import type { AnswerPart, ToolCall } from './parts.js';

/** The message of an assistant; what it did not do is not there. */
export function assistantMessage(parts: readonly AnswerPart[]): ChatMessage {
  const text = (kind: 'content' | 'reasoning') =>
    parts.map((part) => (part.kind === kind ? part.text : '')).join('');
  const calls = parts.flatMap((part) => (part.kind === 'tool_call' ? [part.call] : []));
  const reasoning = text('reasoning');
  return {
    role: 'assistant',
    content: text('content'),
    ...(reasoning && { reasoning_content: reasoning }),
    ...(calls.length > 0 && { tool_calls: calls.map(callMessage) }),
  };
}

const callMessage = ({ id, name, arguments: args }: ToolCall) => ({
  id,
  type: 'function',
  function: { name, arguments: args },
});

/** Templates of Hugging Face take the arguments of calls as objects, where clients of OpenAI write texts. */
export function withParsedArguments(message: ChatMessage): ChatMessage {
  const calls = message.tool_calls;
  if (!Array.isArray(calls)) return message;
  return { ...message, tool_calls: calls.map(withArguments) };
}

function withArguments(call: unknown): unknown {
  const { function: fn } = (call ?? {}) as { function?: { arguments?: unknown } };
  if (typeof fn?.arguments !== 'string') return call;
  try {
    return { ...(call as object), function: { ...fn, arguments: JSON.parse(fn.arguments) as unknown } };
  } catch {
    return call;
  }
}
