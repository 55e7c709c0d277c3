/**
 * A process that renders chat templates, kept from turn to turn. A template comes with a file, and may loop or grow without
 * end; some of what it can do to V8 (arrays that are too long) aborts the whole process, even out of a worker thread.
 */
import { JinjaTemplate, TemplateRefusal } from './jinja/interpreter.js';
import type { RenderMessage, RenderReply, RenderTask } from './renderer.js';

/** Templates that are kept parsed. */
const KEPT = 16;

interface Prepared {
  readonly template: JinjaTemplate;
  /** Whether messages show only when their content is a list of parts, as with templates of the kind of LLaVA. */
  readonly parts: boolean;
}
const prepared = new Map<string, Prepared>();

function prepare(source: string, variables: RenderTask['variables']): Prepared {
  const known = prepared.get(source);
  if (known) return known;
  const template = new JinjaTemplate(source);
  const [unknown] = template.unknown();
  if (unknown) throw new Error(`Unknown ${unknown}`);
  const found = { template, parts: wantsParts(template, variables) };
  if (prepared.size >= KEPT) prepared.delete(prepared.keys().next().value!);
  prepared.set(source, found);
  return found;
}

/** Tries both: a template that shows a text gets texts. */
function wantsParts(template: JinjaTemplate, variables: RenderTask['variables']): boolean {
  const probe = 'probe of the content';
  const shows = (content: unknown) => {
    try {
      return template.render({ ...variables, messages: [{ role: 'user', content }] }).includes(probe);
    } catch {
      return false;
    }
  };
  return !shows(probe) && shows(asParts(probe));
}

const asParts = (text: string) => [{ type: 'text', text }];

function contentFor(content: RenderMessage['content'], parts: boolean): RenderMessage['content'] {
  if (parts) return typeof content === 'string' ? asParts(content) : content;
  if (!Array.isArray(content) || content.some(({ type }) => type !== 'text')) return content;
  return content.map(({ text }) => text ?? '').join('\n');
}

function render({ template: source, messages, variables, maxCharacters }: RenderTask): RenderReply {
  let ready: Prepared;
  try {
    ready = prepare(source, variables);
  } catch (error) {
    // The parser stumbles over the end of a template: what JavaScript says of that helps nobody.
    return { unusable: error instanceof TypeError ? 'it is not a valid template' : (error as Error).message };
  }
  if (messages === undefined) return { text: '' };
  const { template, parts } = ready;
  try {
    const shaped = messages.map((each) => ({ ...each, content: contentFor(each.content, parts) }));
    const text = template.render({ ...variables, messages: shaped });
    return text.length > maxCharacters ? { excess: text.length } : { text };
  } catch (error) {
    const { message } = error as Error;
    return error instanceof TemplateRefusal ? { refusal: message } : { failure: message };
  }
}

process.on('message', (task) => process.send!(render(task as RenderTask)));
// The parent is gone.
process.on('disconnect', () => process.exit());
