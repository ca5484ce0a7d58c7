/** Which branch of a conversation a tab shows, while several tabs go on in it. Pure. */
import { type ItemTree, newestLeaf, pathTo } from "./item_tree";

/** The answer that a tab has asked for last in a conversation: its branch is what its user looks at. */
export interface OwnAnswer {
  /** Id of the item that it follows. */
  parentId: string | null;
  /** Id of its last item; null: it is not complete, or nothing came of it. */
  lastId: string | null;
}

/**
 * Returns the id of the item with which the shown branch ends; null: there are no items.
 *
 * The active branch is shown (`activeId`), which all tabs and clients move, as long as this tab's own answer is on it.
 * Otherwise another tab has gone elsewhere, and this one stays. `own`: null for a tab that has asked for nothing, or whose
 * user has moved to another branch since. `isPending`: it is being made, or the items that were read are not its own yet.
 */
export function shownEnd(
  tree: ItemTree,
  activeId: string | null,
  own: OwnAnswer | null,
  isPending: boolean,
): string | null {
  const known = [own?.lastId, own?.parentId].find((id) => id != null && tree.items.has(id));
  if (own === null || known == null) return activeId;
  if (isPending && known === own.parentId) return known;
  return pathTo(tree, activeId).some(({ id }) => id === known) ? activeId : newestLeaf(tree, known);
}
