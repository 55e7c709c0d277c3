/**
 * The main job, end to end, on the bundled model: convert to both containers, inspect, say what the delays are worth,
 * tell a story, and show that the native engine writes what the reference engine writes.
 */
import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

const root = fileURLToPath(new URL('..', import.meta.url));
const model = join('models', 'stories-arch2_4');
const out = mkdtempSync(join(tmpdir(), 'cflow-demo-'));
const PROMPT = 'Once upon a time';
const GREEDY_TOKENS = '80';
const convert = ['convert', 'cflow-convert'];
const inspect = ['inspect', 'cflow-inspect'];
const generate = ['runtime-native', 'cflow-run'];

const print = (text) => process.stdout.write(`${text}\n`);

function title(text) {
  print(`\n── ${text} ${'─'.repeat(Math.max(3, 90 - text.length))}`);
}

/** Runs a command in the folder of the outputs; ends the demo with its exit code if it fails. */
function spawn([pack, name], args, stdio) {
  const script = join(root, 'packages', pack, 'bin', `${name}.js`);
  const options = { cwd: out, stdio, encoding: 'utf8', maxBuffer: 2 ** 26 };
  const { status, stdout } = spawnSync(process.execPath, [script, ...args], options);
  if (status === 0) return stdout;
  if (stdout) process.stdout.write(stdout);
  rmSync(out, { recursive: true, force: true });
  process.exit(status ?? 1);
}

/** Runs a command before the reader's eyes. */
function show(command, ...args) {
  const shown = args.map((arg) => (arg.includes(' ') ? `"${arg}"` : arg.replace(root, '')));
  print(`$ ${command[1]} ${shown.join(' ')}`);
  spawn(command, args, 'inherit');
}

/** Runs a command and returns its JSON document. */
const json = (command, ...args) =>
  JSON.parse(spawn(command, [...args, '--json'], ['ignore', 'pipe', 'inherit']));

function delays() {
  const { nominal } = json(inspect, 'stories.cflow', '--critical-path').criticalPath;
  const [naive, critical] = [nominal.naive, nominal.critical].map(
    (bytes) => `${(bytes / 2 ** 20).toFixed(2)} MiB`,
  );
  const gain = `${nominal.reduction.toFixed(2)} times less`;
  print(`Per token ${naive} of weights would lie on the critical path; delayed, ${critical}: ${gain}.`);
}

function greedy(file, engine) {
  const options = ['--temperature', '0', '--max-tokens', GREEDY_TOKENS, ...engine];
  const result = json(generate, file, '--prompt', PROMPT, ...options);
  const { promptIds, ids, stats } = result;
  const rate = `${Math.round(stats.tokensPerSecond)} tokens/s`;
  print(`${result.engine.name.padEnd(9)}  ${ids.length - promptIds.length} tokens, ${rate}`);
  return result;
}

function engines() {
  spawn(convert, [join(root, model), 'exact.vflow', '--dtype', 'f32'], 'ignore');
  const [fastest, reference] = [greedy('exact.vflow', []), greedy('exact.vflow', ['--engine', 'reference'])];
  if (fastest.engine.name === 'reference') {
    print('The native engine has not been built here, so there is nothing to compare.');
  } else if (JSON.stringify(fastest.ids) === JSON.stringify(reference.ids)) {
    print(`Both wrote the same: ${fastest.text}`);
  } else {
    print(`They differ!\n${fastest.text}\n${reference.text}`);
    process.exitCode = 1;
  }
}

try {
  title('Convert: one checkpoint, two containers');
  for (const container of ['cflow', 'vflow']) {
    show(convert, join(root, model), `stories.${container}`, '--verify');
  }
  title('Inspect: what is in the file');
  show(inspect, 'stories.cflow');
  title('What the delays are worth');
  delays();
  title('A story');
  const sampling = ['--max-tokens', '120', '--temperature', '0.7', '--seed', '7'];
  show(generate, 'stories.vflow', '--prompt', PROMPT, ...sampling);
  title('Greedy text with f32 weights, by both engines');
  engines();
} finally {
  rmSync(out, { recursive: true, force: true });
}
