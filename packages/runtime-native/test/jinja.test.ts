/** Chat templates against jinja2 itself: golden/chat-templates.json is of pipeline_native/chat_goldens.py. */
import { describe, expect, it } from 'vitest';
import { JinjaTemplate, TemplateRefusal } from '../src/chat/jinja/interpreter.js';
import { goldenJson } from './helpers.js';

interface Goldens {
  readonly now: string;
  readonly variables: Readonly<Record<string, unknown>>;
  readonly cases: readonly { readonly name: string; readonly template: string; readonly text: string }[];
}

const { now, variables, cases } = goldenJson('.', 'chat-templates.json') as Goldens;

describe('as jinja2', () => {
  it.each(cases)('$name', ({ template, text }) => {
    expect(new JinjaTemplate(template).render(variables, new Date(now))).toBe(text);
  });
});

it('names what it does not know, and tells what a template raises from what goes wrong', () => {
  expect(() => new JinjaTemplate('{% trans %}a{% endtrans %}')).toThrow(/trans/);
  expect(new JinjaTemplate('{{ a | nonesuch }}{% if a is odder %}{% endif %}').unknown()).toEqual([
    'filter "nonesuch"',
    'test "odder"',
  ]);
  expect(() => new JinjaTemplate("{{ raise_exception('no') }}").render({})).toThrow(TemplateRefusal);
  expect(() => new JinjaTemplate('{% for i in range(10000000) %}{% endfor %}').render({})).toThrow(/at most/);
});
