/** What a conversion ignored, derived from a default, dropped or changed: said in one list, refused under --strict. */
import { asCflowError, CflowError } from '@cflow/format';

/**
 * @param strict whether notes are errors
 * @throws CflowError CONFIG_INVALID with every note
 */
export function refuseNotes(notes: readonly string[], strict: boolean, file: string): void {
  if (!strict || notes.length === 0) return;
  const count = notes.length === 1 ? '1 note' : `${notes.length} notes`;
  throw new CflowError('CONFIG_INVALID', `${count} under --strict: ${notes.join('; ')}`, {
    file,
    field: 'strict',
    value: notes,
    remedy: 'state in config.json what is meant, or convert without --strict',
  });
}

/** An error that also says what was done before it. */
export function withNotes(error: unknown, notes: readonly string[]): unknown {
  if (notes.length === 0) return error;
  const { code, problem, details } = asCflowError(error);
  return new CflowError(code, problem, { ...details, notes });
}

/** What --allow-nonfinite did to the weights. */
export function zeroedNotes(zeroed: number): string[] {
  if (zeroed === 0) return [];
  return [`${zeroed === 1 ? '1 weight was' : `${zeroed} weights were`} NaN or infinite: stored as 0`];
}
