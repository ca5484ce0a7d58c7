import { expect, it } from "vitest";
import type { Item } from "../api/items";
import { growTree } from "./item_tree";
import { shownEnd } from "./shown_branch";

/** Two messages below one answer: `a` of this tab with its answer, and `b` of another one with its own. */
const LINKS: [string, string | null][] = [
  ["q", null],
  ["x", "q"],
  ["a", "x"],
  ["b", "x"],
  ["b1", "b"],
  ["a1", "a"],
];
const TREE = growTree(LINKS.map(([id, parent_id]): Item => ({ id, parent_id, type: "message" })));

it.each([
  ["nothing is asked for: the active branch", "b1", null, false, "b1"],
  ["the own answer is on the active branch, which went on", "a1", { parentId: "x", lastId: "a" }, false, "a1"],
  ["another tab has moved the active branch: this one stays", "b1", { parentId: "a", lastId: "a1" }, false, "a1"],
  ["the own answer is being made: up to what it follows", "b1", { parentId: "a", lastId: null }, true, "a"],
  ["it is made below an item that has another answer", "x", { parentId: "x", lastId: null }, true, "x"],
  ["it is complete and not read yet", "b1", { parentId: "a", lastId: "a2" }, true, "a"],
  ["nothing came of it: another tab may have asked again", "a1", { parentId: "a", lastId: null }, false, "a1"],
  ["nothing came of it, and the active branch is elsewhere", "b1", { parentId: "a", lastId: null }, false, "a1"],
  ["what it follows was deleted", "b1", { parentId: "gone", lastId: null }, true, "b1"],
  ["no item is active", null, { parentId: "a", lastId: "a1" }, false, "a1"],
])("%s", (_, activeId, own, isPending, shown) => {
  expect(shownEnd(TREE, activeId, own, isPending)).toBe(shown);
});
