import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { convert } from '@cflow/convert';
import { Model } from '@cflow/runtime-native';

const directory = await mkdtemp(join(tmpdir(), 'cflow-example-'));
const output = join(directory, 'stories.cflow');
const { fileBytes } = await convert({ source: 'models/stories-arch2_4', output });
console.log(`${fileBytes} bytes`);

const model = await Model.open(output);
const session = model.createSession();
const ids = model.tokenizer.encode('Once upon a time');
for await (const { text } of session.generate({ ids, maxTokens: 40, temperature: 0 }))
  process.stdout.write(text);
console.log();
await session.close();
await model.close();
await rm(directory, { recursive: true });
