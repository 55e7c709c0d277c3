/** What a conversion ignored, derived from a default, dropped or changed: said in one list, refused under --strict. */
import { asCflowError, CflowError } from '@cflow/format';
import { plural } from '#cli-kit/text.js';

/**
 * @param strict whether notes are errors
 * @throws CflowError CONFIG_INVALID with every note
 */
export function refuseNotes(notes: readonly string[], strict: boolean, file: string): void {
  if (!strict || notes.length === 0) return;
  throw new CflowError(
    'CONFIG_INVALID',
    `${plural(notes.length, 'note')} under --strict: ${notes.join('; ')}`,
    {
      file,
      field: 'strict',
      value: notes,
      remedy: 'state in config.json what is meant, or convert without --strict',
    },
  );
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
  return [`${plural(zeroed, 'weight')} ${zeroed === 1 ? 'was' : 'were'} NaN or infinite: stored as 0`];
}
