import { describe, expect, it } from "vitest";
import type { Item } from "../api/items";
import { EMPTY_ANSWER } from "./answer";
import type { StreamSnapshot } from "./answer_stream";
import { figuresOf, noteTimes, sumFigures, withFigures } from "./figures";
import { NO_PACE } from "./token_pace";

const THOUGHT: Item = { id: "rs_1", type: "reasoning", parent_id: null };
const TEXT: Item = { id: "msg_1", type: "message", role: "assistant", parent_id: null };
const RAW_USAGE = {
  input_tokens: 10,
  input_tokens_details: { cached_tokens: 4 },
  output_tokens: 30,
  output_tokens_details: { reasoning_tokens: 5 },
};
const USAGE = { inputTokens: 10, cachedTokens: 4, outputTokens: 30, reasoningTokens: 5 };
const SNAPSHOT: StreamSnapshot = {
  answer: { ...EMPTY_ANSWER, status: "completed", responseId: "resp_1", items: [THOUGHT, TEXT], usage: RAW_USAGE },
  state: "ended",
  requestedAt: 1000,
  startedAt: 1500,
  endedAt: 3500,
  pace: NO_PACE,
  retry: null,
  itemTimes: { rs_1: { from: 1500, until: 2700 }, msg_1: { from: 2700, until: 3500 } },
};

describe("noteTimes", () => {
  it("ends an item when the next one comes, and the last one at the end", () => {
    const first = noteTimes({}, [THOUGHT], 10, false);
    expect(first).toEqual({ rs_1: { from: 10, until: null } });
    expect(noteTimes(first, [THOUGHT], 20, false)).toBe(first);
    const second = noteTimes(first, [THOUGHT, TEXT], 30, false);
    expect(second).toEqual({ rs_1: { from: 10, until: 30 }, msg_1: { from: 30, until: null } });
    expect(noteTimes(second, [THOUGHT, TEXT], 50, true).msg_1).toEqual({ from: 30, until: 50 });
  });
});

describe("figuresOf", () => {
  const figures = { model: "m", usage: RAW_USAGE, first_token_ms: 500, total_ms: 2500 };
  const item = (changed: object) => ({
    answer: { response_id: "resp_1", took_ms: null, figures: { ...figures, ...changed } },
  });

  it("counts tokens from the first one to the end", () => {
    expect(figuresOf(item({}))).toEqual({ usage: USAGE, firstTokenMs: 500, tokensPerSecond: 15 });
  });

  it.each([
    ["an answer that was no stream", { first_token_ms: null }, null],
    ["one that came in one piece", { total_ms: 599 }, 500],
    ["a single token", { usage: { ...RAW_USAGE, output_tokens: 1 } }, 500],
  ])("tells no speed of %s", (_, changed, firstTokenMs) => {
    expect(figuresOf(item(changed))).toMatchObject({ firstTokenMs, tokensPerSecond: null });
  });

  it("is null without usage, and for an item that no response has made, or not its last", () => {
    expect(figuresOf(item({ usage: null }))).toBeNull();
    expect(figuresOf({ answer: { response_id: "resp_1", took_ms: 3, figures: null } })).toBeNull();
    expect(figuresOf(TEXT)).toBeNull();
  });
});

describe("withFigures", () => {
  it("tells of an answer that the gateway does not keep what the gateway would", () => {
    const [thought, text] = withFigures(SNAPSHOT);
    expect(thought).toEqual({ ...THOUGHT, answer: { response_id: "resp_1", took_ms: 1200, figures: null } });
    expect(text?.answer?.took_ms).toBe(800);
    expect(figuresOf(text ?? {})).toEqual({ usage: USAGE, firstTokenMs: 500, tokensPerSecond: 15 });
  });

  it("tells no times of an answer that it did not request", () => {
    const [thought, text] = withFigures({ ...SNAPSHOT, requestedAt: null });
    expect(thought?.answer?.took_ms).toBeNull();
    expect(figuresOf(text ?? {})).toEqual({ usage: USAGE, firstTokenMs: null, tokensPerSecond: null });
  });
});

it("sums the figures of the responses of one answer", () => {
  const one = { usage: USAGE, firstTokenMs: 100, tokensPerSecond: 10 };
  const two = { usage: { ...USAGE, outputTokens: 7 }, firstTokenMs: 200, tokensPerSecond: 20 };
  expect(sumFigures([one, two])).toEqual({
    usage: { inputTokens: 20, cachedTokens: 8, outputTokens: 37, reasoningTokens: 10 },
    firstTokenMs: 200,
    tokensPerSecond: 20,
  });
  expect(sumFigures([])).toBeNull();
});
