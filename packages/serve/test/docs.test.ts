/** The guide's table of fields is compared with the schemas: no field is forgotten, none is treated otherwise. */
import { readFile } from 'node:fs/promises';
import { expect, it } from 'vitest';
import { parser } from '../src/cli-options.js';
import { Metrics } from '../src/metrics.js';
import { chatRequest } from '../src/schema/chat.js';
import { completionRequest } from '../src/schema/completions.js';

const GUIDE = new URL('../../../docs/guides/serving.md', import.meta.url);

/** Field to treatment, by the table of "Fields of a request". */
async function documented(): Promise<Map<string, string>> {
  const [, section] = /## Fields of a request\n(.*?)\n## /s.exec(await readFile(GUIDE, 'utf8'))!;
  const rows = [...section!.matchAll(/^\| (`.*?) \| (.*) \|$/gm)];
  return new Map(
    rows.flatMap(([, names, treatment]) =>
      [...names!.matchAll(/`(\w+)`/g)].map(([, name]) => [name!, treatment!]),
    ),
  );
}

it('the guide lists every field of the requests, and no other', async () => {
  const fields = new Set([...Object.keys(chatRequest.shape), ...Object.keys(completionRequest.shape)]);
  expect([...(await documented()).keys()].sort()).toEqual([...fields].sort());
});

it('the guide says ignored and refused where the schemas do', async () => {
  const treatments = await documented();
  for (const [name, schema] of Object.entries({ ...chatRequest.shape, ...completionRequest.shape })) {
    const kind = /^(Ignored|Refused)/.exec(schema.description ?? '')?.[0].toLowerCase() ?? 'used';
    const told = /^(ignored|refused)/.exec(treatments.get(name)!)?.[0] ?? 'used';
    expect([name, told]).toEqual([name, kind]);
  }
});

it('files for deployment use options and metrics that there are', async () => {
  const root = new URL('../../../', import.meta.url);
  const paths = [
    'Dockerfile',
    ...['kubernetes.yaml', 'cflow-serve.service'].map((name) => `examples/serving/${name}`),
  ];
  const texts = await Promise.all(paths.map((path) => readFile(new URL(path, root), 'utf8')));
  const lines = texts
    .join('\n')
    .split('\n')
    .filter((line) => /args:|ExecStart|ENTRYPOINT/.test(line));
  const help = await parser().getHelp();
  const flags = lines.flatMap((line) => line.match(/--[a-z-]+/g) ?? []);
  expect(flags.length).toBeGreaterThan(5);
  expect(flags.filter((flag) => !help.includes(`${flag} `))).toEqual([]);
  const metrics = new Metrics();
  metrics.show({ requests: () => 0, models: () => [] });
  const known = await metrics.registry.metrics();
  const guide = await readFile(GUIDE, 'utf8');
  const names = [...texts, guide].flatMap((text) => text.match(/cflow_[a-z_]+/g) ?? []);
  expect([...new Set(names)].filter((name) => !known.includes(`# HELP ${name} `))).toEqual([]);
});
