/** What the native code knows of steps, read from its sources, to compare with the step table. */
import type { FieldKind, ProgramOp, STEPS, stepFields } from '@cflow/format';

/** Fields in order, each with what it is in C++. */
type Fields = readonly (readonly [name: string, type: string])[];

/** The type of each kind of field in `program.h`. */
const CPP_TYPE: Partial<Record<FieldKind, string>> = {
  input: 'BufferId',
  tiledInput: 'BufferId',
  tiledPieces: 'BufferId',
  out: 'BufferId',
  inout: 'BufferId',
  int8Of: 'BufferId',
  inputs: 'std::vector<BufferId>',
  outputs: 'std::vector<MatvecOutput>',
  cacheIn: 'uint32_t',
  cacheOut: 'uint32_t',
  bankIn: 'uint32_t',
  bankOut: 'uint32_t',
  bank: 'uint32_t',
  stream: 'uint32_t',
  weight: 'Offset',
  'weight?': 'Offset',
  matrix: 'TiledMatrix',
  offsets: 'std::vector<uint64_t>',
  count: 'uint32_t',
  'count?': 'uint32_t',
  real: 'float',
  'real?': 'float',
  reals: 'std::vector<float>',
  flag: 'bool',
  activation: 'Activation',
  ropeTable: 'uint32_t',
};

const snake = (name: string) => name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
const pascal = (name: string) => name[0]!.toUpperCase() + name.slice(1);
const sorted = (fields: Fields) => [...fields].sort(([a], [b]) => (a < b ? -1 : 1));

/** The step table: that of the format package, or of a copy of it. */
export interface Table {
  readonly STEPS: typeof STEPS;
  readonly stepFields: typeof stepFields;
}

/** The steps of the table that programs have. */
export const programOps = (table: Table) =>
  Object.entries(table.STEPS).flatMap(([op, { level }]) => (level === 'plan' ? [] : [op as ProgramOp]));

/** The structs of namespace `step` in program.h. */
function structs(header: string): Map<string, Fields> {
  const body = header.slice(header.indexOf('namespace step {'), header.indexOf('}  // namespace step'));
  const found = new Map<string, Fields>();
  for (const [, name, members] of body.matchAll(/^struct (\w+) \{\n(.*?)^\};/gms)) {
    const fields = [...members!.matchAll(/^ {2}([\w:<>]+) (\w+)(?: = [^;]+)?;/gm)];
    found.set(
      name!,
      fields.map(([, type, field]) => [field!, type!] as const),
    );
  }
  return found;
}

/** How program_reader.cpp reads a field, and the kinds of field that are read so. */
const READS: [pattern: RegExp, kinds: FieldKind[]][] = [
  [/\bbuffer\(n, "(\w+)"\)/g, ['input', 'tiledInput', 'tiledPieces', 'out', 'inout', 'int8Of']],
  [/\bn\.count\("(\w+)", 1\)/g, ['count']],
  [/\bn\.count\("(\w+)"\)/g, ['count', 'count?']],
  [/\bn\.real\("(\w+)"\)/g, ['real', 'real?']],
  [/\bn\.flag\("(\w+)"\)/g, ['flag']],
  [/\bn\.offset\("(\w+)", true\)/g, ['weight?']],
  [/\bn\.offset\("(\w+)", false\)/g, ['weight']],
  [/\bread_matrix\(n, "(\w+)"\)/g, ['matrix']],
  [/\bfetched\(n, "(\w+)"/g, ['stream', 'bankIn']],
  [/\bn\.index\("(\w+)"/g, ['ropeTable']],
  [/\bn\.children\("(\w+)"\)/g, ['outputs']],
  [/\bn\.indices\("(\w+)"/g, ['inputs']],
  [/\bn\.numbers\("(\w+)"\)/g, ['reals']],
  [/\b(activation)\(n\)/g, ['activation']],
  [/\b(cache)\(n\)/g, ['cacheIn', 'cacheOut']],
  [/\b(bank)\(n\)/g, ['bankOut', 'bank']],
  [/\b(stream)\(n\)/g, ['stream']],
  [/\b(experts)\(n\)/g, ['offsets']],
];
/** What a reader adds to a step that it has made. */
const ADDED: readonly FieldKind[] = ['outputs', 'reals'];

interface Reader {
  readonly struct: string;
  /** Fields in the order in which they are read, with the kinds that are read so. */
  readonly fields: readonly { readonly name: string; readonly kinds: readonly FieldKind[] }[];
}

function readers(source: string): Map<string, Reader> {
  const found = new Map<string, Reader>();
  for (const [, op, method, of] of source.matchAll(/\{"(\w+)", &StepReader::(\w+)(?:<step::(\w+)>)?\}/g)) {
    const start = source.indexOf(`  Step ${method}(const Node& n) const {`);
    if (start < 0) throw new Error(`StepReader::${method} is not there`);
    const oneLine = source.slice(start, source.indexOf('\n', start));
    const body = oneLine.endsWith('}') ? oneLine : source.slice(start, source.indexOf('\n  }', start));
    const all = READS.flatMap(([pattern, kinds]) =>
      [...body.matchAll(pattern)].map((match) => ({ at: match.index, name: match[1]!, kinds })),
    );
    const first = new Map(all.sort((a, b) => b.at - a.at).map((read) => [read.name, read]));
    const fields = [...first.values()].sort((a, b) => a.at - b.at);
    found.set(op!, { struct: of ?? /step::(\w+)[ {]/.exec(body)![1]!, fields });
  }
  return found;
}

/** Every difference between the step table and the native sources, in words; empty if there is none. */
export function differences(table: Table, header: string, reader: string): string[] {
  const ops = programOps(table);
  const found: string[] = [];
  const expect = (what: string, wanted: unknown, native: unknown) => {
    const [a, b] = [JSON.stringify(wanted), JSON.stringify(native)];
    if (a !== b) found.push(`${what}: ${a} in the table, ${b} in the native code`);
  };
  const types = structs(header);
  const reads = readers(reader);
  const variant = /using Step = std::variant<(.*?)>;/s.exec(header)![1]!;
  const steps = [...variant.matchAll(/step::(\w+)/g)].map(([, name]) => name!);
  expect('steps of the variant', ops.map(pascal).sort(), steps.sort());
  expect('steps that are read', [...ops].sort(), [...reads.keys()].sort());
  for (const op of ops) {
    const fields = table.stepFields(op, 'program');
    const struct = types.get(pascal(op)) ?? [];
    const own = reads.get(op)?.fields ?? [];
    const typed = fields.map(([name, kind]) => [snake(name), CPP_TYPE[kind] ?? kind] as const);
    expect(`struct of ${op}`, sorted(typed), sorted(struct));
    expect(`struct that ${op} is read into`, pascal(op), reads.get(op)?.struct);
    const kinds = new Map(fields);
    expect(`fields that are read of ${op}`, [...kinds.keys()].sort(), own.map(({ name }) => name).sort());
    for (const { name, kinds: allowed } of own) {
      const kind = kinds.get(name);
      if (kind && !allowed.includes(kind))
        found.push(`${op}.${name}: ${kind} in the table, read as ${allowed}`);
    }
    // Structs are filled by position.
    const placed = (names: readonly string[]) =>
      names.filter((name) => !ADDED.includes(kinds.get(name) ?? 'count')).map(snake);
    const order = placed(own.map(({ name }) => name));
    const inStruct = struct.map(([name]) => name).filter((name) => order.includes(name));
    expect(`order of the fields of ${op}`, inStruct, order);
  }
  return found;
}
