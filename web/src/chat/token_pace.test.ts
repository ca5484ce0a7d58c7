import { describe, expect, it } from "vitest";
import { NO_PACE, notePace, sayPace, type TokenPace } from "./token_pace";

/** The pace after tokens that had come at these times. */
function paceOf(...samples: [at: number, tokens: number][]): TokenPace {
  return samples.reduce((pace, [at, tokens]) => notePace(pace, tokens, at), NO_PACE);
}

describe("notePace", () => {
  it("says nothing before it has seen a second of the answer", () => {
    expect(paceOf([1000, 1], [1500, 20], [1999, 40]).perSecond).toBeNull();
    expect(paceOf([1000, 1], [1500, 20], [2000, 31]).perSecond).toBe(30);
  });

  it("counts nothing of what came with the first sample", () => {
    expect(paceOf([0, 5000], [2000, 5040]).perSecond).toBe(20);
  });

  it("changes twice a second at most", () => {
    const pace = paceOf([0, 1], [1000, 11]);
    expect(notePace(pace, 400, 1499)).toBe(pace);
    expect(notePace(pace, 31, 1500).perSecond).toBe(20);
  });

  it("forgets what is older than five seconds", () => {
    const slow = Array.from({ length: 9 }, (_, index): [number, number] => [index * 1000, 1 + index]);
    const fast = Array.from({ length: 5 }, (_, index): [number, number] => [9000 + index * 1000, 109 + index * 100]);
    expect(paceOf(...slow).perSecond).toBe(1);
    expect(paceOf(...slow, ...fast).perSecond).toBe(100);
  });

  it("begins anew after a pause: of the pause it knows nothing", () => {
    expect(paceOf([0, 1], [1000, 11], [60_000, 12]).perSecond).toBeNull();
  });

  it("does not begin before the first token", () => {
    expect(notePace(NO_PACE, 0, 10)).toBe(NO_PACE);
  });
});

it.each([
  [3.44, "3.4 tokens/s"],
  [0, "0.0 tokens/s"],
  [27.6, "28 tokens/s"],
])("says %d: %s", (perSecond, words) => {
  expect(sayPace(perSecond)).toBe(words);
});
