/** cflow-serve: the shell around the server, which is loaded once the arguments are parsed. */
import { once } from 'node:events';
import { CflowError } from '@cflow/format/internal/errors.js';
import { parseArguments } from '#cli-kit/command.js';
import { runCommand, writeMessage } from '#cli-kit/output.js';
import { interruptible } from '#cli-kit/signals.js';
import { type Arguments, parser, serverOptions } from './cli-options.js';

/** Runs cflow-serve until a signal ends it; resolves to the exit code and never throws. */
export const main = (argv: string[]): Promise<number> =>
  runCommand('cflow-serve', () => interruptible((end) => run(argv, end)));

async function run(argv: string[], end: AbortSignal): Promise<number> {
  const args = (await parseArguments(parser(), argv)) as Arguments | undefined;
  if (!args) return 0;
  const options = serverOptions(args, process.env);
  const { createServer } = await import('./server.js');
  const server = await createServer(options);
  try {
    const address = await server.app.listen({ host: args.host, port: args.port }).catch((cause) => {
      throw cannotListen(args, cause);
    });
    await writeMessage(`cflow-serve: listening on ${address}\n`);
    if (!end.aborted) await once(end, 'abort');
    await writeMessage('cflow-serve: no new requests; waiting for those that run\n');
  } finally {
    await server.drain();
  }
  return 0;
}

function cannotListen({ host, port }: Arguments, cause: NodeJS.ErrnoException): CflowError {
  return new CflowError('USAGE', `cannot listen on ${host}:${port}: ${cause.code ?? cause.message}`, {
    field: '--port',
    remedy: 'choose another, or end what listens there',
    cause,
  });
}
