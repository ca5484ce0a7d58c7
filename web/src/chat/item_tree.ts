/** The tree of a conversation's items: branches, the path that is shown, and the siblings to move between. Pure. */
import type { Annotation, Item } from "../api/items";

export interface ItemTree {
  items: ReadonlyMap<string, Item>;
  /** Ids of the items that follow an item, in order of creation; those of `ROOT` begin a branch. */
  children: ReadonlyMap<string, readonly string[]>;
}

export const ROOT = "";

/** Returns the tree of items that are listed in order of creation. An item whose parent is not listed begins a branch. */
export function growTree(listed: readonly Item[]): ItemTree {
  const items = new Map(listed.map((item) => [item.id, item]));
  const children = new Map<string, string[]>();
  for (const item of listed) {
    const parent = item.parent_id !== null && items.has(item.parent_id) ? item.parent_id : ROOT;
    const siblings = children.get(parent);
    if (siblings === undefined) children.set(parent, [item.id]);
    else siblings.push(item.id);
  }
  return { items, children };
}

/** Returns the items from the first one to `id`, in order. Empty for an unknown id. */
export function pathTo(tree: ItemTree, id: string | null): Item[] {
  const path: Item[] = [];
  let item = id === null ? undefined : tree.items.get(id);
  while (item !== undefined && path.length <= tree.items.size) {
    path.push(item);
    item = item.parent_id === null ? undefined : tree.items.get(item.parent_id);
  }
  return path.reverse();
}

/** Returns the last item of the newest branch through `id`: from there, the newest child again and again. */
export function newestLeaf(tree: ItemTree, id: string): string {
  let leaf = id;
  for (;;) {
    const next = tree.children.get(leaf)?.at(-1);
    if (next === undefined) return leaf;
    leaf = next;
  }
}

export interface Siblings {
  /** Ids of the items with the same parent, in order of creation. */
  ids: readonly string[];
  /** Place of the item among them, from 0. */
  index: number;
}

/** Returns the item's siblings, itself included. */
export function siblingsOf(tree: ItemTree, item: Item): Siblings {
  const parent = item.parent_id !== null && tree.items.has(item.parent_id) ? item.parent_id : ROOT;
  const ids = tree.children.get(parent) ?? [];
  return { ids, index: ids.indexOf(item.id) };
}

/** Returns whether an item belongs to the user's turn: what comes after it, until the next such item, is an answer. */
export function isUserItem(item: Item): boolean {
  return item.type === "message" && item.role !== "assistant";
}

export interface Turn {
  /** The user's message, or null where an answer begins the conversation. */
  question: Item | null;
  /** Items of the answer: reasoning, calls of tools, texts; a message that was continued is one with what follows. */
  answer: Item[];
  /** The same as they are stored, each for itself. */
  stored: Item[];
}

/** Returns a path as turns: each message of the user with the items that answer it. System messages are left out. */
export function groupTurns(path: readonly Item[]): Turn[] {
  const turns: Turn[] = [];
  for (const item of path) {
    if (item.role === "system" || item.role === "developer") continue;
    const last = turns.at(-1);
    if (isUserItem(item)) turns.push({ question: item, answer: [], stored: [] });
    else if (last === undefined) turns.push({ question: null, answer: [item], stored: [item] });
    else {
      addToAnswer(last.answer, item);
      last.stored.push(item);
    }
  }
  return turns;
}

/** Adds an item to an answer. A message that goes on where a cut one ended is shown as one with it. */
function addToAnswer(answer: Item[], item: Item): void {
  const last = answer.at(-1);
  if (last?.type === "message" && last.status === "incomplete" && item.type === "message") {
    answer[answer.length - 1] = joinMessages(last, item);
  } else answer.push(item);
}

function joinMessages(cut: Item, next: Item): Item {
  const [begun, ...others] = next.content ?? [];
  const content = [...(cut.content ?? [])];
  const end = content.at(-1);
  if (end?.type === "output_text" && begun?.type === "output_text") {
    // Places of annotations count in the text of their own part.
    const moved = (begun.annotations ?? []).map((each) => movedBy(each, end.text.length));
    const annotations = [...(end.annotations ?? []), ...moved];
    content[content.length - 1] = { ...end, text: end.text + begun.text, annotations };
  } else if (begun !== undefined) content.push(begun);
  return { ...next, id: cut.id, parent_id: cut.parent_id, content: [...content, ...others] };
}

function movedBy(annotation: Annotation, offset: number): Annotation {
  const moved = { ...annotation };
  for (const place of ["index", "start_index", "end_index"]) {
    const value = moved[place];
    if (typeof value === "number") moved[place] = value + offset;
  }
  return moved;
}
