/** What `cflow-run --profile` prints. */
import { plural, table } from '#cli-kit/text.js';
import type { NativeStats } from '../engine.js';
import type { ProfileEntry } from '../native/addon.js';
import type { SessionStats } from '../session.js';

/** Figures of a session and, with the native engine, where its time went; lines for people. */
export function profileText(stats: SessionStats): string {
  const { promptTokens, prefillMs, decodeMs, tokensPerSecond, tokenMsP50, tokenMsP99, firstTokenMs } = stats;
  const prefillRate = prefillMs > 0 ? (1000 * promptTokens) / prefillMs : 0;
  const decode = `decode    ${tokensPerSecond.toFixed(1)} tokens/s; a token takes ${ms(tokenMsP50)} (p50), ${ms(tokenMsP99)} (p99)`;
  const lines = [
    `prompt    ${plural(promptTokens, 'token')}, ${prefillRate.toFixed(1)} tokens/s, time to first token ${ms(firstTokenMs)}`,
    ...(decodeMs > 0 ? [decode] : []),
    ...(stats.native ? nativeLines(stats.native) : []),
  ];
  return `${lines.join('\n')}\n`;
}

function nativeLines(native: NativeStats): string[] {
  const { isa, threads, threadsReason, weights, choice, arithmetic, cache } = native;
  const { barriersPerToken, profile } = native;
  return [
    `engine    native, ${isa}, ${plural(threads, 'thread')} (${threadsReason}), ${arithmetic} activations, ${cache} KV cache`,
    `weights   ${weights} (${choice.reason})`,
    `barriers  ${barriersPerToken} per token${unshared(native)}`,
    ...profileTable(profile, threads),
  ];
}

/** Threads that were not asked for share only phases that are long enough. */
function unshared({ barriersPerToken, sharedPhases, threads, shareShort }: NativeStats): string {
  const alone = barriersPerToken - sharedPhases;
  if (threads === 1 || shareShort || alone === 0) return '';
  const phases = alone === 1 ? 'phase is' : 'phases are';
  return `; ${alone} ${phases} too short to share: 1 thread`;
}

/** Steps by the time they took, summed over threads; GB/s of all threads together while in the step. */
function profileTable(profile: readonly ProfileEntry[], threads: number): string[] {
  const total = profile.reduce((sum, { seconds }) => sum + seconds, 0);
  const sorted = [...profile].filter(({ calls }) => calls > 0).sort((a, b) => b.seconds - a.seconds);
  if (sorted.length === 0) return [];
  const rows = sorted.map(({ name, calls, seconds, bytes }) => [
    name,
    String(calls),
    ms(1000 * seconds),
    `${((100 * seconds) / total).toFixed(1)} %`,
    bytes && seconds ? ((bytes * threads) / seconds / 1e9).toFixed(1) : '',
  ]);
  return table(['step', '>calls', '>time', '>share', '>GB/s'], rows);
}

const ms = (value: number) => `${value.toFixed(2)} ms`;
