/** cflow-chat: parses the arguments; what runs a model is loaded after that. */
import { packageVersion } from '@cflow/format/node';
import { parseArguments } from '#cli-kit/command.js';
import { runCommand } from '#cli-kit/output.js';
import { type ChatArguments, checkChatArguments, parser } from './chat-cli/options.js';

/** Runs cflow-chat; resolves to the exit code and never throws. */
export function main(argv: string[]): Promise<number> {
  return runCommand('cflow-chat', async () => {
    const parsed = await parseArguments(parser(packageVersion(import.meta.url)), argv);
    if (!parsed) return 0;
    const args = parsed as ChatArguments;
    checkChatArguments(args);
    const { chatWith } = await import('./chat-cli/run.js');
    return chatWith(args);
  });
}
