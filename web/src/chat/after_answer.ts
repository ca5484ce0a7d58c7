/** What follows the end of an answer: it is stored where the gateway does not, and a first one gives a title. */
import type { ApiClient } from "../api/client";
import { textOf } from "../api/items";
import type { Answer } from "./answer";
import { storeOf, titleOf, updateConversation } from "./conversations";
import { groupTurns, growTree, pathTo } from "./item_tree";
import { readPreferences } from "./preferences";
import { browserStore, isInBrowser } from "./stores/browser_store";
import { writeTitle } from "./title";

/** Adds a complete answer to a conversation that is kept in the browser. The gateway has stored that of any other. */
export async function storeAnswer(conversationId: string, answer: Answer): Promise<void> {
  const isComplete = answer.status === "completed" || answer.status === "incomplete";
  if (!isInBrowser(conversationId) || !isComplete || answer.items.length === 0) return;
  const store = browserStore();
  const conversation = await store.get(conversationId);
  const items = answer.items.map(({ parent_id: _, ...item }) => item);
  await store.addItems(conversationId, items, conversation.active_item_id ?? null);
}

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
