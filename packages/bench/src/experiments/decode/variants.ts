/** `--variants weights=mapped,resident`: options of our engine to compare. */
import { CflowError } from '@cflow/format';
import type { OpenModelOptions } from '@cflow/runtime-native';
import { ENGINES } from '@cflow/runtime-native/internal/model.js';
import type { Variant } from './bench.js';

type Values = (value: string) => OpenModelOptions | undefined;

/** An option with a fixed set of values. */
function words<K extends keyof OpenModelOptions>(key: K, all: readonly OpenModelOptions[K][]): Values {
  return (value) => {
    const found = all.find((word) => word === value);
    return found === undefined ? undefined : ({ [key]: found } as OpenModelOptions);
  };
}

const onOff: Record<string, boolean> = { on: true, off: false };

/** Options that can vary, and their parsers. */
const KEYS: Record<string, Values> = {
  engine: words('engine', Object.keys(ENGINES) as (keyof typeof ENGINES)[]),
  weights: words('weights', ['mapped', 'resident']),
  arithmetic: words('arithmetic', ['q8', 'f32']),
  cache: words('cache', ['f16', 'f32']),
  delayAware: (value) => (Object.hasOwn(onOff, value) ? { delayAware: onOff[value] } : undefined),
  threads: (value) => (/^[1-9]\d{0,3}$/.test(value) ? { threads: Number(value) } : undefined),
  isa: (value) => (value ? { isa: value } : undefined),
};

/**
 * Every combination of the values; without lists, `base` alone.
 * @param lists `key=value,value`, one key each
 * @throws CflowError USAGE for an unknown key or value
 */
export function parseVariants(lists: readonly string[], base: OpenModelOptions): Variant[] {
  const seen = new Set<string>();
  let variants: Variant[] = [{ name: '', options: base }];
  for (const list of lists) {
    const { key, choices } = parseList(list);
    if (seen.has(key)) bad(list, `${key} is given twice`, 'name all its values at once');
    seen.add(key);
    variants = variants.flatMap(({ name, options }) =>
      choices.map((choice) => ({
        name: `${name} ${key}=${choice.value}`.trim(),
        options: { ...options, ...choice.options },
      })),
    );
  }
  return variants.map(({ name, options }) => ({ name: `cflow ${name}`.trim(), options }));
}

function parseList(list: string) {
  const [key = '', values = ''] = list.split(/=(.*)/s);
  const read = Object.hasOwn(KEYS, key) ? KEYS[key] : undefined;
  if (!read)
    return bad(list, `unknown option ${JSON.stringify(key)}`, `one of ${Object.keys(KEYS).join(', ')}`);
  const choices = values.split(',').map((value) => {
    const options = read(value);
    if (!options)
      return bad(list, `${JSON.stringify(value)} is not a value of ${key}`, 'e.g. weights=mapped,resident');
    return { value, options };
  });
  return { key, choices };
}

function bad(value: string, problem: string, remedy: string): never {
  throw new CflowError('USAGE', problem, { field: '--variants', value, remedy });
}
