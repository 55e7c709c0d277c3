import { nativeError } from '@cflow/runtime-native';

/** What the addon answers. @param file what it was asked about @throws CflowError of the code that the addon gives */
export function answered<T>(answer: Promise<T>, file?: string): Promise<T> {
  return answer.catch((error: unknown) => {
    throw nativeError(error, file);
  });
}
