/**
 * The process that renders one chat template. A template comes with a file, and may loop or grow without end;
 * some of what it can do to V8 (arrays that are too long) aborts the whole process, even out of a worker thread.
 */
import { runInNewContext } from 'node:vm';
import { Template } from '@huggingface/jinja';

export interface RenderTask {
  readonly template: string;
  readonly variables: Readonly<Record<string, unknown>>;
  readonly maxCharacters: number;
}
/** `excess`: characters of a text that is too long to be handed over. */
export type RenderReply =
  | { readonly text: string }
  | { readonly excess: number }
  | { readonly failure: string };

/** Milliseconds after which this process gives up by itself, should the parent be gone. */
const ABANDONED_MS = 20_000;

function render({ template, variables, maxCharacters }: RenderTask): RenderReply {
  try {
    const run = () => new Template(template).render({ ...variables });
    const text = runInNewContext('run()', { run }, { timeout: ABANDONED_MS }) as string;
    return text.length > maxCharacters ? { excess: text.length } : { text };
  } catch (error) {
    return { failure: (error as Error).message };
  }
}

// The parent ends this process once it has the reply or has waited long enough; until then, the listener keeps it.
process.on('message', (task) => process.send!(render(task as RenderTask)));
