/** The worked example of docs/adding-a-step.md, made in a copy of the sources and run. */
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { dirname, join, relative } from 'node:path';
import { fileURLToPath } from 'node:url';
import { layoutOnly } from '@cflow/test-kit/models';
import { differences } from '@cflow/test-kit/step-table';
import ts from 'typescript';
import { afterAll, beforeAll, expect, it } from 'vitest';

const ROOT = fileURLToPath(new URL('..', import.meta.url));
const original = (path: string) => readFileSync(join(ROOT, path), 'utf8');
const NATIVE = 'packages/runtime-native/native';

/** The sources that the example changes, by path, changed as the document says. */
function changed(document: string): Map<string, string> {
  const files = new Map<string, string>();
  let path = '';
  for (const [, named, anchor, code] of document.matchAll(
    /^(?:In `([^`]+)`,|and) before `([^`]+)`:\n\n```\w+\n(.*?)\n```$/gms,
  )) {
    path = named ?? path;
    const text = files.get(path) ?? original(path);
    expect(text.split(anchor!), `${anchor} in ${path}`).toHaveLength(2);
    // Lines stand in front of the anchor's line; less than a line in front of the anchor itself.
    const piece = text.includes(`\n${anchor}`) ? `${code}\n` : code!;
    files.set(
      path,
      text.replace(anchor!, () => piece + anchor),
    );
  }
  return files;
}

/** Transpiles a package's sources into `target`, with the changes. */
function build(name: string, target: string, files: ReadonlyMap<string, string>): void {
  const source = join(ROOT, 'packages', name, 'src');
  for (const file of readdirSync(source, { recursive: true, encoding: 'utf8' })) {
    if (!file.endsWith('.ts')) continue;
    const path = join('packages', name, 'src', file);
    const out = join(target, name, file.replace(/\.ts$/, '.js'));
    const format = relative(dirname(out), join(target, 'format'));
    const text = (files.get(path) ?? original(path))
      .replaceAll("'@cflow/format/node'", `'${format}/node.js'`)
      .replaceAll("'@cflow/format'", `'${format}/index.js'`);
    const options = {
      module: ts.ModuleKind.ESNext,
      target: ts.ScriptTarget.ES2022,
      verbatimModuleSyntax: true,
    };
    mkdirSync(dirname(out), { recursive: true });
    writeFileSync(out, ts.transpileModule(text, { compilerOptions: options }).outputText);
  }
}

let copy = '';
let files: ReadonlyMap<string, string>;
beforeAll(() => {
  files = changed(original('docs/adding-a-step.md'));
  const cache = join(ROOT, 'node_modules/.cache');
  mkdirSync(cache, { recursive: true });
  copy = mkdtempSync(join(cache, 'adding-a-step-'));
  writeFileSync(join(copy, 'package.json'), '{"type":"module"}');
  for (const name of ['format', 'runtime-native']) build(name, copy, files);
});
afterAll(() => rmSync(copy, { recursive: true, force: true }));

/** A module of the copy. */
const load = (path: string) => import(/* @vite-ignore */ join(copy, path));

it('changes seven files, and leaves no other mention of the step', () => {
  expect([...files.keys()]).toHaveLength(7);
  const listed = original('docs/adding-a-step.md').matchAll(/^\| `(packages\/[^`]+)`/gm);
  expect([...listed].map(([, path]) => path)).toEqual([...files.keys()]);
});

it('the new step is printed, scheduled, executed and lowered', async () => {
  const format = await load('format/index.js');
  const step = { op: 'leakyRelu', buffer: 'logits', slope: 0.25 };
  expect(format.stepAccess(step)).toEqual({ reads: ['logits'], writes: ['logits'] });
  expect(format.stepRun(step)).toBe('serial');

  const plan = format.buildPlan(format.PRESETS.arch3, { transfers: 'none' });
  const phase = plan.phaseCount - 1;
  const changedPlan = { ...plan, steps: [...plan.steps, { phase, ...step }] };
  expect(format.formatPlan(changedPlan)).toContain('leakyRelu    logits, slope 0.25');
  expect(format.barriersPerToken(changedPlan)).toBe(format.barriersPerToken(plan));

  const { runStep } = await load('runtime-native/reference/steps.js');
  const x = Float32Array.of(-8, -1, 0, 2);
  runStep(step, { buffer: () => x });
  expect([...x]).toEqual([-2, -0.25, 0, 2]);

  const { lowerPlan } = await load('runtime-native/native/lower.js');
  const options = { arithmetic: 'q8', delayAware: true };
  const { program } = lowerPlan(changedPlan, layoutOnly(plan.config), options);
  expect(program.steps.at(-1)).toEqual({ op: 'leakyRelu', buffer: program.output, slope: 0.25 });
  expect(program.phases.at(-1).serial).toEqual([program.steps.length - 1]);
});

it('table, struct and reader agree, and only together', async () => {
  const table = await load('format/plan/steps.js');
  const [header, reader] = [`${NATIVE}/engine/program.h`, `${NATIVE}/addon/program_reader.cpp`];
  expect(differences(table, files.get(header)!, files.get(reader)!)).toEqual([]);
  expect(differences(table, original(header), files.get(reader)!).join()).toContain('LeakyRelu');
  expect(differences(table, files.get(header)!, original(reader)).join()).toContain('leakyRelu');
});
