import { nativeError } from '@cflow/runtime-native/internal/native/addon.js';

/** Calls the addon. @param file for error messages @throws CflowError with the error code of the addon */
export function answered<T>(answer: Promise<T>, file?: string): Promise<T> {
  return answer.catch((error: unknown) => {
    throw nativeError(error, file);
  });
}
