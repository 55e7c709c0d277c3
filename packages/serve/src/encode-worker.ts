/** A thread that encodes long texts, so that nobody's stream waits for them. */
import { parentPort, workerData } from 'node:worker_threads';
import { type ChatTemplate, TextTokenizer } from '@cflow/runtime-native';

type Tokenizer = ConstructorParameters<typeof TextTokenizer>[0];

/** How a text becomes ids: as a prompt, as a rendered conversation, or as one whose users typed control tokens. */
export type EncodeKind = 'prompt' | 'rendered' | 'marked';

/** What a tokenizer does for each kind. @param template the source of the chat template, if there is one */
export function encodersOf(tokenizer: TextTokenizer, template: ChatTemplate['source'] | undefined) {
  const control = tokenizer.controlTokens(template ?? '');
  return {
    prompt: (text) => tokenizer.encode(text),
    rendered: (text) => tokenizer.encode(text, { specialTokens: false }),
    marked: (text) => tokenizer.encodeAliased(control.alias(text), control),
  } as const satisfies Record<EncodeKind, (text: string) => number[]>;
}

// The module is imported by the thread that starts it too.
if (parentPort && workerData?.tokenizer) {
  const metadata = workerData.tokenizer as Tokenizer;
  const encoders = encodersOf(new TextTokenizer(metadata), metadata.chatTemplate);
  parentPort.on('message', ({ kind, text }: { kind: EncodeKind; text: string }) => {
    parentPort!.postMessage(Int32Array.from(encoders[kind](text)));
  });
}
