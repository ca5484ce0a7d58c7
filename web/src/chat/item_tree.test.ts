import { expect, it } from "vitest";
import { groupTurns, growTree, newestLeaf, pathTo, siblingsOf } from "./item_tree";
import { outline } from "./thread/tree_dialog";
import { textItem } from "./transfer/portable";

const ITEMS = [
  textItem("u1", null, "user", "one"),
  textItem("a1", "u1", "assistant", "first"),
  textItem("a2", "u1", "assistant", "second"),
  textItem("u2", "a1", "user", "more"),
  textItem("u3", null, "user", "anew"),
];
const TREE = growTree(ITEMS);

it("finds paths, leaves and siblings", () => {
  expect(pathTo(TREE, "u2").map((item) => item.id)).toEqual(["u1", "a1", "u2"]);
  expect(pathTo(TREE, "unknown")).toEqual([]);
  expect(pathTo(TREE, null)).toEqual([]);
  expect(newestLeaf(TREE, "u1")).toBe("a2");
  expect(newestLeaf(TREE, "a1")).toBe("u2");
  expect(siblingsOf(TREE, ITEMS[1] as never)).toEqual({ ids: ["a1", "a2"], index: 0 });
  expect(siblingsOf(TREE, ITEMS[4] as never)).toEqual({ ids: ["u1", "u3"], index: 1 });
});

it("does not loop on a circle of parents", () => {
  const circle = growTree([textItem("x", "y", "user", ""), textItem("y", "x", "user", "")]);
  expect(pathTo(circle, "x").length).toBeGreaterThan(0);
});

it("groups a path as turns, without system messages", () => {
  const path = [textItem("s", null, "system", ""), ...pathTo(TREE, "u2")];
  expect(groupTurns(path).map((turn) => [turn.question?.id, turn.answer.map((item) => item.id)])).toEqual([
    ["u1", ["a1"]],
    ["u2", []],
  ]);
  expect(groupTurns([textItem("a", null, "assistant", "")])).toHaveLength(1);
});

it("outlines branches, one deeper after each fork", () => {
  expect(outline(TREE).map(({ item, depth }) => `${item.id}${depth}`)).toEqual(["u10", "a11", "u21", "a21", "u30"]);
});
