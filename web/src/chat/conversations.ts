/** Conversations of the gateway (docs/conversations.md), as queries and changes of TanStack Query. */
import { queryOptions } from "@tanstack/react-query";
import type { ApiClient } from "../api/client";
import type { Item } from "../api/items";

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
  updated_at?: number;
  metadata: Record<string, string>;
  settings?: ConversationSettings | null;
  active_item_id?: string | null;
  item_count?: number;
  model?: string | null;
  is_running?: boolean;
  /** Of a search: the text around the hit. */
  snippet?: string | null;
}

const PATH = "/v1/conversations";

export const conversationKeys = {
  all: ["conversations"] as const,
  list: (search: string) => ["conversations", "list", search] as const,
  one: (id: string) => ["conversations", "one", id] as const,
  items: (id: string) => ["conversations", "items", id] as const,
};

/** The conversations of the caller's tenant, the one used last first; those that hold `search`, if it is not empty. */
export function conversationsQuery(client: ApiClient, search: string) {
  return queryOptions({
    queryKey: conversationKeys.list(search),
    queryFn: () => client.list<Conversation>(PATH, { limit: 100, q: search || null }, 500),
  });
}

export function conversationQuery(client: ApiClient, id: string) {
  return queryOptions({
    queryKey: conversationKeys.one(id),
    queryFn: () => client.request<Conversation>(`${PATH}/${id}`),
  });
}

/** All items of a conversation, of every branch, in order of creation. */
export function itemsQuery(client: ApiClient, id: string) {
  return queryOptions({
    queryKey: conversationKeys.items(id),
    queryFn: () => client.list<Item>(`${PATH}/${id}/items`, { branch: "all", order: "asc", limit: 1000 }, 100_000),
  });
}

export function createConversation(client: ApiClient, title: string, settings: ConversationSettings) {
  return client.request<Conversation>(PATH, { body: { metadata: { title }, settings } });
}

export interface ConversationChange {
  metadata?: Record<string, string>;
  settings?: ConversationSettings | null;
  active_item_id?: string | null;
}

export function updateConversation(client: ApiClient, id: string, change: ConversationChange) {
  return client.request<Conversation>(`${PATH}/${id}`, { body: change });
}

export function deleteConversation(client: ApiClient, id: string) {
  return client.request<unknown>(`${PATH}/${id}`, { method: "DELETE" });
}

/** Adds items below `parentId` (null: a new first item) and makes their branch the active one. */
export function addItems(client: ApiClient, id: string, items: readonly object[], parentId: string | null) {
  return client.request<{ data: Item[] }>(`${PATH}/${id}/items`, { body: { items, parent_id: parentId } });
}

/** Returns the title of a conversation for a first message: its first line, shortened. */
export function titleOf(text: string): string {
  const line = text.trim().split("\n", 1)[0] ?? "";
  const short = line.length > 80 ? `${line.slice(0, 79).trimEnd()}…` : line;
  return short || "New conversation";
}
