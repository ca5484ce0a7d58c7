/** The turns of the branch that is shown, in groups: a long conversation is rendered group by group. Pure. */
import type { Item } from "../../api/items";
import { groupTurns, type ItemTree, siblingsOf, type Turn } from "../item_tree";

export interface ShownTurn extends Turn {
  /** Ids of the question and of its siblings, in order of creation; empty without a question. */
  questionIds: readonly string[];
  /** The same of the first item of the answer; empty without an answer. */
  answerIds: readonly string[];
}

const NONE: readonly string[] = [];

/**
 * Returns the turns of a path. Where a turn is the same as the one at its place in `before`, it is that very object, so
 * that the component of that turn is not rendered anew.
 */
export function showTurns(path: readonly Item[], tree: ItemTree, before: readonly ShownTurn[] = []): ShownTurn[] {
  return groupTurns(path).map((turn, index) => {
    const [first] = turn.answer;
    const shown = {
      ...turn,
      questionIds: turn.question === null ? NONE : siblingsOf(tree, turn.question).ids,
      answerIds: first === undefined ? NONE : siblingsOf(tree, first).ids,
    };
    const known = before[index];
    return known !== undefined && isSame(known, shown) ? known : shown;
  });
}

function isSame(one: ShownTurn, other: ShownTurn): boolean {
  return (
    one.question === other.question &&
    hasSame(one.answer, other.answer) &&
    hasSame(one.stored, other.stored) &&
    hasSame(one.questionIds, other.questionIds) &&
    hasSame(one.answerIds, other.answerIds)
  );
}

function hasSame<T>(one: readonly T[], other: readonly T[]): boolean {
  return one.length === other.length && one.every((each, index) => each === other[index]);
}

/** Turns of one group: about two screens of them. */
export const GROUP_SIZE = 5;

/** Newest turns that are rendered before all others, at least. */
export const NEWEST = 25;

/** Returns the turns in groups of `GROUP_SIZE`; the last one may have fewer. A turn that is added changes that one alone. */
export function groupsOf<T>(turns: readonly T[]): T[][] {
  const groups: T[][] = [];
  for (let begin = 0; begin < turns.length; begin += GROUP_SIZE) groups.push(turns.slice(begin, begin + GROUP_SIZE));
  return groups;
}

/** Returns how many of the first groups can wait: those after them hold the `NEWEST` turns. */
export function groupsThatWait(turnCount: number): number {
  return Math.max(0, Math.floor((turnCount - NEWEST) / GROUP_SIZE));
}
