import { expect, it } from "vitest";
import { growTree, pathTo } from "../item_tree";
import { textItem } from "../transfer/portable";
import { groupsOf, groupsThatWait, showTurns } from "./shown_turns";

const ITEMS = [
  textItem("u1", null, "user", "one"),
  textItem("a1", "u1", "assistant", "first"),
  textItem("u2", "a1", "user", "two"),
  textItem("a2", "u2", "assistant", "second"),
];
const OTHER_ANSWER = textItem("a3", "u2", "assistant", "third");
const NEXT_QUESTION = textItem("u3", "a3", "user", "three");

function show(items: typeof ITEMS, activeId: string, before = [] as ReturnType<typeof showTurns>) {
  const tree = growTree(items);
  return showTurns(pathTo(tree, activeId), tree, before);
}

it("tells the siblings of a question and of an answer", () => {
  const turns = show([...ITEMS, OTHER_ANSWER, NEXT_QUESTION], "u3");
  expect(turns.map(({ questionIds, answerIds }) => [questionIds, answerIds])).toEqual([
    [["u1"], ["a1"]],
    [["u2"], ["a2", "a3"]],
    [["u3"], []],
  ]);
});

it("keeps the turns that have not changed", () => {
  const before = show(ITEMS, "a2");
  const after = show([...ITEMS, OTHER_ANSWER, NEXT_QUESTION], "u3", before);
  expect(after[0]).toBe(before[0]);
  expect(after[1]).not.toBe(before[1]);
  expect(after.map(({ question }) => question?.id)).toEqual(["u1", "u2", "u3"]);
  expect(show(ITEMS, "a2", before)).toEqual(before);
});

it("takes no turn of another branch for its own", () => {
  const before = show(ITEMS, "a2");
  const [first, edited] = show([...ITEMS, textItem("u9", "a1", "user", "two, edited")], "u9", before);
  expect(first).toBe(before[0]);
  expect(edited?.question?.id).toBe("u9");
});

it.each([
  [0, 0, []],
  [1, 0, [1]],
  [5, 0, [5]],
  [6, 0, [5, 1]],
  [29, 0, [5, 5, 5, 5, 5, 4]],
  [30, 1, [5, 5, 5, 5, 5, 5]],
  [36, 2, [5, 5, 5, 5, 5, 5, 5, 1]],
])("of %i turns, lets %i groups wait", (count, waiting, sizes) => {
  const turns = Array.from({ length: count }, (_, index) => index);
  expect(groupsThatWait(count)).toBe(waiting);
  expect(groupsOf(turns).map((group) => group.length)).toEqual(sizes);
  expect(groupsOf(turns).flat()).toEqual(turns);
});
