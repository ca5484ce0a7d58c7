import { expect, test, vi } from "vitest";
import { ApiClient } from "../api/client";
import { detailsText, type Entry, MOST_ENTRIES, mergeEntries, newestId, readHistory } from "./journal";

function entryOf(id: number, message = "x"): Entry {
  return { id, at: id / 1000, kind: "state", model: null, actor: "controller", message, details: {} };
}

test("entries are there once, the newest first, in the newer form", () => {
  const merged = mergeEntries([entryOf(3), entryOf(2, "new")], [entryOf(2, "old"), entryOf(1)]);
  expect(merged.map((entry) => [entry.id, entry.message])).toEqual([
    [3, "x"],
    [2, "new"],
    [1, "x"],
  ]);
  expect([newestId(merged), newestId([])]).toEqual([3, null]);
});

test("the oldest entries go, where there are too many", () => {
  const many = Array.from({ length: MOST_ENTRIES }, (_, id) => entryOf(id + 1));
  const merged = mergeEntries([entryOf(MOST_ENTRIES + 1)], many);
  expect([merged.length, merged[0]?.id, merged.at(-1)?.id]).toEqual([MOST_ENTRIES, MOST_ENTRIES + 1, 2]);
});

test("details leave out what is not known", () => {
  expect(detailsText({ ...entryOf(1), details: { last_error: null } })).toBe("");
  expect(JSON.parse(detailsText({ ...entryOf(1), details: { from: "loading", last_error: null } }))).toEqual({
    from: "loading",
  });
});

test("history is asked for by the filter, a page at a time", async () => {
  const fetched = vi.fn(async (_path: string) => new Response('{"entries": [], "next_before": null}'));
  vi.stubGlobal("fetch", fetched);
  await readHistory(new ApiClient(() => null), { model: "a b", kind: "failure" }, 7);
  expect(fetched.mock.calls[0]?.[0]).toBe("/v1/admin/history?kind=failure&limit=100&model=a+b&before=7");
  vi.unstubAllGlobals();
});
