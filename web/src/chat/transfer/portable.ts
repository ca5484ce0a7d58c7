/** A conversation outside of any store: what files of every format are read into, and written from. */
import type { Item } from "../../api/items";
import type { ConversationSettings } from "../conversations";

export interface Portable {
  title: string;
  /** Unix seconds; null: the file does not tell. */
  createdAt: number | null;
  settings: ConversationSettings;
  /** In an order in which parents come before their children. */
  items: Item[];
  /** The last item of the branch that is shown; null: that of the newest item. */
  activeId: string | null;
}

/** A file that is none of the known formats, or is damaged. The text says why. */
export class ImportProblem extends Error {}

/** Returns a message of plain text. */
export function textItem(
  id: string,
  parentId: string | null,
  role: "user" | "assistant" | "system",
  text: string,
): Item {
  const content =
    role === "assistant"
      ? [{ type: "output_text" as const, text, annotations: [] }]
      : [{ type: "input_text" as const, text }];
  return { id, type: "message", role, parent_id: parentId, content };
}

/**
 * Returns the items in an order in which parents come before their children, as the gateway takes them. An item whose
 * parent is missing, or that is its own ancestor, becomes a first one.
 */
export function orderItems(items: readonly Item[]): Item[] {
  const byId = new Map(items.map((item) => [item.id, item]));
  const ordered = new Map<string, Item>();
  for (const item of items) {
    const chain: Item[] = [];
    const seen = new Set<string>();
    let next: Item | undefined = item;
    while (next !== undefined && !ordered.has(next.id) && !seen.has(next.id)) {
      seen.add(next.id);
      chain.push(next);
      next = next.parent_id === null ? undefined : byId.get(next.parent_id);
    }
    for (const each of chain.reverse()) {
      const parentId = each.parent_id !== null && ordered.has(each.parent_id) ? each.parent_id : null;
      ordered.set(each.id, { ...each, parent_id: parentId });
    }
  }
  return [...ordered.values()];
}

/** Returns the conversation with new ids of its items, so that it can be imported beside what it was exported from. */
export function renewIds(portable: Portable, newId: () => string): Portable {
  const ids = new Map(portable.items.map((item) => [item.id, newId()]));
  return {
    ...portable,
    items: portable.items.map((item) => ({
      ...item,
      id: ids.get(item.id) ?? newId(),
      parent_id: item.parent_id === null ? null : (ids.get(item.parent_id) ?? null),
    })),
    activeId: portable.activeId === null ? null : (ids.get(portable.activeId) ?? null),
  };
}
