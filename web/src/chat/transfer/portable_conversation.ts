/** Conversations between their stores and files. */
import type { ApiClient } from "../../api/client";
import { randomId } from "../../api/items";
import { storeOf } from "../conversations";
import { browserStore } from "../stores/browser_store";
import { serverStore } from "../stores/server_store";
import { type Portable, renewIds } from "./portable";

/** Reads a conversation whole, with all branches. */
export async function loadPortable(client: ApiClient, id: string): Promise<Portable> {
  const store = storeOf(client, id);
  const [conversation, items] = await Promise.all([store.get(id), store.listItems(id)]);
  const model = conversation.settings?.model ?? conversation.model;
  return {
    title: conversation.metadata.title ?? "Untitled",
    createdAt: conversation.created_at,
    settings: { ...(model ? { model } : {}), ...conversation.settings },
    items,
    activeId: conversation.active_item_id ?? null,
  };
}

/** Stores an imported conversation and returns its id. What fails midway is removed again. Throws as the store does. */
export async function storePortable(client: ApiClient, portable: Portable, inBrowser: boolean): Promise<string> {
  const store = inBrowser ? browserStore() : serverStore(client);
  const { title, settings, items, activeId } = renewIds(portable, () => `item_${randomId()}`);
  const created = await store.create({ title, settings, items });
  try {
    if (activeId !== null && activeId !== items.at(-1)?.id)
      await store.update(created.id, { active_item_id: activeId });
  } catch (error) {
    await store.remove(created.id);
    throw error;
  }
  return created.id;
}
