/** Output that may fail, messages that must not, and the exit code. */
import { asCflowError, CflowError, errorLine } from '@cflow/format/internal/errors.js';

/** What a command writes to; failures of it come through the callback of `write`. */
type Output = NodeJS.WritableStream;

/**
 * Writes a result to stdout and waits until it is taken, so that output never runs ahead of a slow reader.
 * Resolves to false if the reader closed the pipe, as `| head` does: a closed pipe is not an error.
 * @throws CflowError WRITE_FAILED
 */
export async function writeOutput(text: string, stream: Output = process.stdout): Promise<boolean> {
  const problem = await write(stream, text);
  if (!problem) return true;
  if (problem.code === 'EPIPE') return false;
  throw new CflowError('WRITE_FAILED', `cannot write: ${problem.code ?? problem.message}`, {
    file: 'stdout',
    remedy: 'make room, or send the output elsewhere',
    cause: problem,
  });
}

/** Writes a message to stderr. A message that nobody can read is lost: it never changes the exit code. */
export async function writeMessage(text: string, stream: Output = process.stderr): Promise<void> {
  await write(stream, text);
}

/** Runs a command; resolves to its exit code and never throws. An error is one line on stderr. */
export async function runCommand(
  name: string,
  work: () => Promise<number>,
  message: (text: string) => Promise<void> = writeMessage,
): Promise<number> {
  // Warnings and progress lines that cannot be written must not end the command either.
  for (const stream of [process.stdout, process.stderr]) tolerate(stream);
  try {
    return await work();
  } catch (error) {
    const known = asCflowError(error);
    await message(errorLine(name, known));
    return known.exitCode;
  }
}

/** The error of a write, if any. Streams to files may throw, those to pipes report. */
function write(stream: Output, text: string): Promise<NodeJS.ErrnoException | null | undefined> {
  tolerate(stream);
  return new Promise((resolve) => {
    try {
      stream.write(text, resolve);
    } catch (error) {
      resolve(error as NodeJS.ErrnoException);
    }
  });
}

const ignore = () => undefined;

/** An `error` event without a listener would end the process. */
function tolerate(stream: Output): void {
  if (!stream.listeners('error').includes(ignore)) stream.on('error', ignore);
}
