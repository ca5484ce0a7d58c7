/** How fast a running answer comes, by what its stream has said. Pure. */

/** Tokens that had come at a time, in milliseconds of a monotonic clock. */
interface Sample {
  at: number;
  tokens: number;
}

export interface TokenPace {
  samples: readonly Sample[];
  /** Tokens per second of the last seconds; null: too little has come to say. */
  perSecond: number | null;
}

export const NO_PACE: TokenPace = { samples: [], perSecond: null };

/** Milliseconds between two samples: a figure that changes more often cannot be read. */
const EVERY_MS = 500;
/** Milliseconds of the answer that a pace is measured over, at least and at most. */
const LEAST_MS = 1000;
const MOST_MS = 5000;

/**
 * Returns the pace after `tokens` had come at `now`. What came with the first sample counts for nothing: a page that
 * reads an answer from its middle gets all before that at once.
 */
export function notePace(pace: TokenPace, tokens: number, now: number): TokenPace {
  const last = pace.samples.at(-1);
  if (tokens === 0 || (last !== undefined && now - last.at < EVERY_MS)) return pace;
  const recent = [...pace.samples.filter(({ at }) => now - at <= MOST_MS), { at: now, tokens }];
  const first = recent[0] ?? { at: now, tokens };
  const ms = now - first.at;
  return { samples: recent, perSecond: ms < LEAST_MS ? null : ((tokens - first.tokens) * 1000) / ms };
}

/** Says a pace: `3.4 tokens/s`, `28 tokens/s`. */
export function sayPace(perSecond: number): string {
  return `${perSecond < 10 ? perSecond.toFixed(1) : Math.round(perSecond)} tokens/s`;
}
