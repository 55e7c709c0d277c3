/** The main job, end to end, on the bundled model: convert to both containers, inspect, tell a story. */
import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

const root = fileURLToPath(new URL('..', import.meta.url));
const model = join('models', 'stories-arch2_4');
const out = mkdtempSync(join(tmpdir(), 'cflow-demo-'));

function run(bin, ...args) {
  const [pack, name] = bin;
  const shown = args.map((arg) => (arg.includes(' ') ? `"${arg}"` : arg.replace(out, '$OUT')));
  process.stdout.write(`\n$ ${name} ${shown.join(' ')}\n`);
  const script = join(root, 'packages', pack, 'bin', `${name}.js`);
  const { status } = spawnSync(process.execPath, [script, ...args], { cwd: root, stdio: 'inherit' });
  if (status !== 0) process.exit(status ?? 1);
}

const convert = ['convert', 'cflow-convert'];
const inspect = ['inspect', 'cflow-inspect'];
const generate = ['runtime-native', 'cflow-run'];
try {
  run(convert, model, join(out, 'stories.cflow'), '--verify');
  run(convert, model, join(out, 'stories.vflow'), '--verify');
  run(inspect, join(out, 'stories.cflow'));
  run(inspect, join(out, 'stories.vflow'), '--verify');
  const story = [
    '--prompt',
    'Once upon a time',
    '--max-tokens',
    '120',
    '--temperature',
    '0.7',
    '--seed',
    '7',
  ];
  run(generate, join(out, 'stories.vflow'), ...story);
  process.stdout.write('\n');
} finally {
  rmSync(out, { recursive: true, force: true });
}
