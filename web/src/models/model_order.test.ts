import { expect, test } from "vitest";
import type { AdminModel } from "./admin_models";
import { filterModels, nextSorting, type SortKey, sortModels } from "./model_order";

const MODELS = [
  { name: "b", runtime_state: "loaded", vram_estimate_mib: 10, queue_depth: 0, aliases: ["gpt-4"] },
  { name: "a", runtime_state: "failed", vram_estimate_mib: null, queue_depth: 3, aliases: [] },
  { name: "c", runtime_state: "unloaded", vram_estimate_mib: 30, queue_depth: 0, aliases: [] },
].map((fields) => ({ resolved_backend: "llama_server", ...fields })) as unknown as AdminModel[];

test.each([
  ["name", "abc", "cba"],
  ["state", "bac", "cab"],
  ["memory", "bca", "cba"],
  ["tokens", "abc", "cab"],
  ["waiting", "bca", "abc"],
] as const)("by %s, and the other way round", (key: SortKey, up: string, down: string) => {
  const order = (isDescending: boolean) =>
    sortModels(MODELS, { key, isDescending }, { c: 5 })
      .map(({ name }) => name)
      .join("");
  expect([order(false), order(true)]).toEqual([up, down]);
});

test("a filter looks at names, other names and backends, in a state", () => {
  const names = (text: string, state: "" | "loaded" = "") => filterModels(MODELS, text, state).map(({ name }) => name);
  expect(names("GPT")).toEqual(["b"]);
  expect(names("llama")).toEqual(["b", "a", "c"]);
  expect(names("", "loaded")).toEqual(["b"]);
  expect(names("a", "loaded")).toEqual(["b"]);
  expect(names("none")).toEqual([]);
});

test("a heading turns its order round, and figures begin with the largest", () => {
  const byName = { key: "name", isDescending: false } as const;
  expect(nextSorting(byName, "name")).toEqual({ key: "name", isDescending: true });
  expect(nextSorting(byName, "waiting")).toEqual({ key: "waiting", isDescending: true });
  expect(nextSorting({ key: "waiting", isDescending: true }, "state")).toEqual({ key: "state", isDescending: false });
});
