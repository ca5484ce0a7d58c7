import { beforeEach, describe, expect, it } from "vitest";
import type { Item } from "../api/items";
import { EMPTY_ANSWER } from "./answer";
import type { StreamSnapshot } from "./answer_stream";
import { FigureStore, figuresOf, noteTimes, sumFigures } from "./figures";

const THOUGHT: Item = { id: "rs_1", type: "reasoning", parent_id: null };
const TEXT: Item = { id: "msg_1", type: "message", role: "assistant", parent_id: null };
const USAGE = { inputTokens: 10, cachedTokens: 4, outputTokens: 30, reasoningTokens: 5 };
const SNAPSHOT: StreamSnapshot = {
  answer: { ...EMPTY_ANSWER, status: "completed", items: [THOUGHT, TEXT], usage: USAGE },
  state: "ended",
  requestedAt: 1000,
  startedAt: 1500,
  endedAt: 3500,
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
  it("counts from the request to the first token, and tokens from there to the end", () => {
    expect(figuresOf(SNAPSHOT)).toEqual({ usage: USAGE, firstTokenMs: 500, tokensPerSecond: 15 });
  });

  it("tells no times of an answer that it did not request", () => {
    expect(figuresOf({ ...SNAPSHOT, requestedAt: null })).toEqual({
      usage: USAGE,
      firstTokenMs: null,
      tokensPerSecond: null,
    });
  });

  it("is null without usage", () => {
    expect(figuresOf({ ...SNAPSHOT, answer: { ...SNAPSHOT.answer, usage: null } })).toBeNull();
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

describe("FigureStore", () => {
  beforeEach(() => localStorage.clear());

  it("keeps figures by the last item and times of thoughts, also for the next page", () => {
    new FigureStore().keep(SNAPSHOT);
    const next = new FigureStore();
    expect(next.findFigures("msg_1")).toEqual(figuresOf(SNAPSHOT));
    expect(next.findTook("rs_1")).toBe(1200);
    expect(next.findFigures("rs_1")).toBeNull();
  });

  it("reads nothing from what is no list", () => {
    localStorage.setItem("roundhouse.figures", "{oops");
    expect(new FigureStore().findFigures("msg_1")).toBeNull();
  });

  it("lets the oldest give way", () => {
    const store = new FigureStore();
    for (let index = 0; index <= 1000; index += 1)
      store.keep({ ...SNAPSHOT, answer: { ...SNAPSHOT.answer, items: [{ ...TEXT, id: `msg_${index}` }] } });
    expect(store.findFigures("msg_0")).toBeNull();
    expect(store.findFigures("msg_1000")).not.toBeNull();
  });
});
