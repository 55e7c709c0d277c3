/** Commands at a terminal: `script` of util-linux gives them one. */
import { spawn } from 'node:child_process';

/** A command that runs at a terminal of its own. */
export interface Terminal {
  /** Everything it has written. */
  readonly output: () => string;
  /** Types keys. */
  readonly type: (keys: string) => void;
  /** Resolves once it writes a text that matches, after what earlier calls have seen. */
  readonly shows: (pattern: RegExp) => Promise<string>;
  /** Resolves to its exit code. */
  readonly exit: Promise<number>;
}

const quoted = (word: string) => `'${word.replaceAll("'", "'\\''")}'`;

/** Runs a command, its program first. */
export function atTerminal(
  command: readonly string[],
  environment: Readonly<Record<string, string>> = {},
): Terminal {
  const line = command.map(quoted).join(' ');
  const { NO_COLOR: _, ...inherited } = process.env;
  const child = spawn('script', ['-qefc', line, '/dev/null'], {
    env: { ...inherited, TERM: 'xterm-256color', ...environment },
    stdio: ['pipe', 'pipe', 'inherit'],
  });
  let output = '';
  let seen = 0;
  let ended = false;
  let look: () => void = () => undefined;
  child.stdout.setEncoding('utf8').on('data', (text: string) => {
    output += text;
    look();
  });
  const exit = new Promise<number>((resolve, reject) => {
    child.once('error', reject);
    child.once('close', (code) => {
      ended = true;
      look();
      resolve(code ?? -1);
    });
  });
  const shows = (pattern: RegExp) =>
    new Promise<string>((resolve, reject) => {
      look = () => {
        const match = pattern.exec(output.slice(seen));
        if (match) {
          seen += match.index + match[0].length;
          look = () => undefined;
          resolve(match[0]);
        } else if (ended)
          reject(new Error(`ended without ${pattern}: ${JSON.stringify(output.slice(seen))}`));
      };
      look();
    });
  return { output: () => output, type: (keys) => void child.stdin.write(keys), shows, exit };
}
