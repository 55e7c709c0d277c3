/** An engine session that a test makes up: what it does not name is not called. */
import type { EngineSession } from '../src/engine.js';

const notCalled = () => {
  throw new Error('not a part of this test');
};

export const stubEngine = (session: Pick<EngineSession, 'run' | 'stats'>): EngineSession => ({
  truncate: notCalled,
  fork: notCalled,
  close: async () => undefined,
  ...session,
});
