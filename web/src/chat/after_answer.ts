/** What follows the end of an answer: a first one gives a title. */
import type { ApiClient } from "../api/client";
import { textOf } from "../api/items";
import { storeOf, titleOf, updateConversation } from "./conversations";
import { groupTurns, growTree, pathTo } from "./item_tree";
import { readPreferences } from "./preferences";
import { writeTitle } from "./title";

/**
 * Has the chosen model write the title of a conversation whose first answer is complete, unless the user wrote one.
 * Returns whether the title changed. Does nothing if no model was chosen.
 */
export async function nameConversation(client: ApiClient, conversationId: string): Promise<boolean> {
  const { titleModel } = readPreferences();
  if (titleModel === "") return false;
  const store = storeOf(client, conversationId);
  const [conversation, items] = await Promise.all([store.get(conversationId), store.listItems(conversationId)]);
  const path = pathTo(growTree(items), conversation.active_item_id ?? null);
  const [first, ...others] = groupTurns(path);
  if (first?.question == null || others.length > 0 || conversation.metadata.title !== titleOf(textOf(first.question)))
    return false;
  const title = await writeTitle(client, titleModel, path);
  if (title === null) return false;
  await updateConversation(client, conversationId, { metadata: { ...conversation.metadata, title } });
  return true;
}
