/** The native program follows the step table: any difference in a step, a field, a type or an order is found. */
import { readFileSync } from 'node:fs';
import * as format from '@cflow/format';
import { differences, programOps } from '@cflow/test-kit/step-table';
import { describe, expect, it } from 'vitest';

const native = (path: string) => readFileSync(new URL(`../native/${path}`, import.meta.url), 'utf8');
const HEADER = native('engine/program.h');
const READER = native('addon/program_reader.cpp');

describe('program.h and program_reader.cpp', () => {
  it('have the steps of the table, field by field', () => {
    expect(programOps(format).length).toBeGreaterThan(20);
    expect(differences(format, HEADER, READER)).toEqual([]);
  });

  it.each<[string, string, string, string]>([
    ['a field of another type', 'float cap;', 'uint32_t cap;', 'struct of softcap'],
    ['a field of another name', 'BufferId logits;', 'BufferId scores;', 'struct of route'],
    ['a missing field', '  uint32_t parts;\n', '', 'struct of quantize'],
    ['a surplus field', '  uint32_t at;\n', '  uint32_t at;\n  uint32_t to;\n', 'struct of copy'],
    ['a step that the variant lacks', 'step::Copy, ', '', 'steps of the variant'],
    [
      'fields in another order',
      '  BufferId k;\n  BufferId v;',
      '  BufferId v;\n  BufferId k;',
      'order of the fields of append',
    ],
  ])('%s in the header is found', (_, from, to, message) => {
    expect(HEADER).toContain(from);
    expect(differences(format, HEADER.replace(from, to), READER).join()).toContain(message);
  });

  it.each<[string, string, string, string]>([
    ['a step that is not read', '{"softcap", &StepReader::softcap},', '', 'steps that are read'],
    ['a field that is not read', 'n.real("cap")', '0', 'fields that are read of softcap'],
    [
      'a field that is read as another kind',
      'n.real("cap")',
      'n.count("cap")',
      'softcap.cap: real in the table',
    ],
    ['a weight that may be absent', 'n.offset("scale", true)', 'n.offset("scale", false)', 'route.scale'],
    [
      'swapped buffers',
      'buffer(n, "k"), buffer(n, "v")',
      'buffer(n, "v"), buffer(n, "k")',
      'order of the fields of append',
    ],
  ])('%s in the reader is found', (_, from, to, message) => {
    expect(READER).toContain(from);
    expect(differences(format, HEADER, READER.replace(from, to)).join()).toContain(message);
  });
});
