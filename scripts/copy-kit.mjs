/**
 * Before a package with a command is compiled, in its folder: copies the built kit of the commands into dist/cli-kit,
 * where its sources find it as `#cli-kit/…`. The kit is private; what is published must contain it.
 */
import { cpSync, rmSync } from 'node:fs';

const KIT = '../cli-kit/dist';
rmSync('dist/cli-kit', { recursive: true, force: true });
cpSync(KIT, 'dist/cli-kit', { recursive: true, filter: (path) => !path.endsWith('.map') });
