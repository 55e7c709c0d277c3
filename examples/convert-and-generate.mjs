import { convert } from '@cflow/convert';
import { Model } from '@cflow/runtime-native';

await convert({ source: 'models/stories-arch2_4', output: 'library.cflow', overwrite: true });
const model = await Model.open('library.cflow');
const session = model.createSession();
const ids = model.tokenizer?.encode('Once upon a time') ?? [];
for await (const { text } of session.generate({ ids, maxTokens: 40, temperature: 0 }))
  process.stdout.write(text);
await session.close();
await model.close();
