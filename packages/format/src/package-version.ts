import { createRequire } from 'node:module';

/** The version of a package, as its package.json has it. @param module `import.meta.url` of a module in its src/ or dist/ */
export function packageVersion(module: string): string {
  return (createRequire(module)('../package.json') as { version: string }).version;
}
