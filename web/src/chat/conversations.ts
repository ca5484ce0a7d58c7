/** Conversations of the gateway (docs/conversations.md), as queries and changes of TanStack Query. */
import { keepPreviousData, queryOptions } from "@tanstack/react-query";
import type { ApiClient } from "../api/client";
import { browserStore, isInBrowser } from "./stores/browser_store";
import { serverStore } from "./stores/server_store";
import type { ConversationStore } from "./stores/store";

/** What the page keeps of a conversation beside its items. */
export interface ConversationSettings {
  model?: string;
  instructions?: string;
  parameters?: Parameters;
  /** Labels of MCP servers whose tools the model may call; `roundhouse` stands for the built-in ones. */
  toolServers?: string[];
  /** Tools that run without a question, as `server/tool`. */
  approvedTools?: string[];
  /** Collections of documents that answers are grounded on. */
  collections?: string[];
}

/** Sampling parameters that a request sets; what is left out is the model's own default. */
export interface Parameters {
  temperature?: number;
  top_p?: number;
  top_k?: number;
  min_p?: number;
  max_output_tokens?: number;
  seed?: number;
  reasoning_effort?: "none" | "minimal" | "low" | "medium" | "high" | "xhigh" | "max";
}

export interface Conversation {
  id: string;
  created_at: number;
  /** Unix seconds of its last change or continuation. */
  last_used_at?: number;
  metadata: Record<string, string>;
  /** Missing in lists. */
  settings?: ConversationSettings | null;
  active_item_id?: string | null;
  item_count?: number;
  /** The model that answered last; null: none has. */
  model?: string | null;
  /** The response that is being made; null: none is. */
  running_response_id?: string | null;
  /** Of a search: where the words are. */
  hit?: { item_id: string | null; before: string; match: string; after: string } | null;
}

export const conversationKeys = {
  all: ["conversations"] as const,
  list: (search: string) => ["conversations", "list", search] as const,
  one: (id: string) => ["conversations", "one", id] as const,
  items: (id: string) => ["conversations", "items", id] as const,
};

/** Returns the store of a conversation, by its id. */
export function storeOf(client: ApiClient, id: string): ConversationStore {
  return isInBrowser(id) ? browserStore() : serverStore(client);
}

/** The conversations, the one used last first; those that hold the words of `search`, if it is not empty. */
export function conversationsQuery(client: ApiClient, search: string) {
  return queryOptions({
    queryKey: conversationKeys.list(search),
    queryFn: () => listConversations(client, search),
    placeholderData: keepPreviousData,
  });
}

async function listConversations(client: ApiClient, search: string): Promise<Conversation[]> {
  // A browser that keeps nothing has no conversations of its own.
  const own = browserStore()
    .list(search)
    .catch(() => []);
  const listed = await Promise.all([serverStore(client).list(search), own]);
  return listed.flat().sort((one, other) => usedAt(other) - usedAt(one));
}

/** Returns when a conversation was used last, in Unix seconds. */
export function usedAt(conversation: Conversation): number {
  return conversation.last_used_at ?? conversation.created_at;
}

export function conversationQuery(client: ApiClient, id: string) {
  return queryOptions({ queryKey: conversationKeys.one(id), queryFn: () => storeOf(client, id).get(id) });
}

/** All items of a conversation, of every branch, in the order in which they were added. */
export function itemsQuery(client: ApiClient, id: string) {
  return queryOptions({ queryKey: conversationKeys.items(id), queryFn: () => storeOf(client, id).listItems(id) });
}

/** Creates a conversation. `inBrowser`: it is kept in this browser alone. */
export function createConversation(
  client: ApiClient,
  title: string,
  settings: ConversationSettings,
  inBrowser = false,
): Promise<Conversation> {
  const store = inBrowser ? browserStore() : serverStore(client);
  return store.create({ title, settings });
}

export interface ConversationChange {
  metadata?: Record<string, string>;
  settings?: ConversationSettings | null;
  active_item_id?: string | null;
}

export function updateConversation(client: ApiClient, id: string, change: ConversationChange) {
  return storeOf(client, id).update(id, change);
}

export function deleteConversation(client: ApiClient, id: string) {
  return storeOf(client, id).remove(id);
}

/** Adds items below `parentId` (null: a new first item) and makes their branch the active one. */
export function addItems(client: ApiClient, id: string, items: readonly object[], parentId: string | null) {
  return storeOf(client, id).addItems(id, items, parentId);
}

/** Returns the title of a conversation for a first message: its first line, shortened. */
export function titleOf(text: string): string {
  const line = text.trim().split("\n", 1)[0] ?? "";
  const short = line.length > 80 ? `${line.slice(0, 79).trimEnd()}…` : line;
  return short || "New conversation";
}
