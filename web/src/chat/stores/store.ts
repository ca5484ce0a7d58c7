/** Where conversations are kept: at the gateway, or in this browser alone. */
import type { Item } from "../../api/items";
import type { Conversation, ConversationChange, ConversationSettings } from "../conversations";

export interface NewConversation {
  title: string;
  settings: ConversationSettings;
  /** First items with ids and parents, parents first. */
  items?: readonly Item[];
}

export interface ConversationStore {
  /** Returns conversations, the one used last first; those that hold the words of `search`, if it is not empty. */
  list: (search: string) => Promise<Conversation[]>;
  get: (id: string) => Promise<Conversation>;
  create: (conversation: NewConversation) => Promise<Conversation>;
  update: (id: string, change: ConversationChange) => Promise<Conversation>;
  remove: (id: string) => Promise<void>;
  /** Returns the items of all branches, in the order in which they were added. */
  listItems: (id: string) => Promise<Item[]>;
  /** Adds items, each after the one before it, the first one below `parentId`; the last one becomes active. */
  addItems: (id: string, items: readonly object[], parentId: string | null) => Promise<void>;
}
