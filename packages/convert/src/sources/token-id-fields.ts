/** Ids of tokens in config.json and generation_config.json, looked at before anything is made of them. */
import { CflowError } from '@cflow/format';
import { isJsonObject, type JsonObject, type JsonValue } from '../json.js';

/** Characters of a value in messages. */
const MOST_SHOWN = 60;

/** @throws CflowError CONFIG_INVALID naming the place of what is no id */
export function checkTokenIds(json: JsonObject, file: string): void {
  const inner = json.text_config;
  for (const [prefix, fields] of [
    ['', json],
    ['text_config.', isJsonObject(inner) ? inner : {}],
  ] as const) {
    const { bos_token_id: bos = null, eos_token_id: eos = null } = fields;
    if (bos !== null) checkId(bos, `${prefix}bos_token_id`, 'a whole number', file);
    if (Array.isArray(eos)) {
      for (const [i, id] of eos.entries()) checkId(id, `${prefix}eos_token_id[${i}]`, 'a whole number', file);
    } else if (eos !== null) {
      checkId(eos, `${prefix}eos_token_id`, 'a whole number or a list of them', file);
    }
  }
}

function checkId(id: JsonValue, field: string, expected: string, file: string): void {
  if (Number.isSafeInteger(id)) return;
  const shown = typeof id === 'number' ? String(id) : JSON.stringify(id).slice(0, MOST_SHOWN);
  throw new CflowError('CONFIG_INVALID', `is ${shown}, expected ${expected}`, { file, field, value: id });
}
