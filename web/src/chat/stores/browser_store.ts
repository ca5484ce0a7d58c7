/** Conversations that are kept in this browser alone. The gateway sees them while it answers, and stores nothing. */
import { type Item, randomId, textOf } from "../../api/items";
import type { Conversation } from "../conversations";
import { openDatabase } from "./browser_database";
import type { ConversationStore } from "./store";

const PREFIX = "browser-";

/** Returns whether a conversation of this id is kept in the browser alone. */
export function isInBrowser(id: string): boolean {
  return id.startsWith(PREFIX);
}

export function browserStore(now: () => number = () => Date.now() / 1000): ConversationStore {
  const newId = (prefix: string) => prefix + randomId();

  async function use<T>(work: (database: Awaited<ReturnType<typeof openDatabase>>) => Promise<T>): Promise<T> {
    const database = await openDatabase();
    try {
      return await work(database);
    } finally {
      database.close();
    }
  }

  async function read(id: string): Promise<Conversation> {
    const found = await use((database) => database.get("conversations", id));
    if (found === undefined) throw new Error("This browser has no such conversation. It may have been deleted.");
    return found;
  }

  async function listItems(id: string): Promise<Item[]> {
    const found = await use((database) => database.getAllFromIndex("items", "conversation", id));
    return found
      .sort((one, other) => one.place - other.place)
      .map(({ conversation_id: _, place: __, ...item }) => item as Item);
  }

  async function append(id: string, items: readonly object[], parentId: string | null): Promise<void> {
    const conversation = await read(id);
    await use(async (database) => {
      const transaction = database.transaction(["items", "conversations"], "readwrite");
      let place = await transaction.objectStore("items").index("conversation").count(id);
      let parent = parentId;
      for (const given of items as readonly Partial<Item>[]) {
        const item = { type: "message", status: "completed", ...given, id: given.id ?? newId("item-") } as Item;
        item.parent_id = given.parent_id === undefined ? parent : given.parent_id;
        await transaction.objectStore("items").put({ ...item, conversation_id: id, place });
        parent = item.id;
        place += 1;
      }
      const changed = { ...conversation, active_item_id: parent, item_count: place, last_used_at: now() };
      await transaction.objectStore("conversations").put(changed);
      await transaction.done;
    });
  }

  return {
    async list(search) {
      const all = await use((database) => database.getAll("conversations"));
      const words = search.toLowerCase().split(/\s+/).filter(Boolean);
      const holds = async (conversation: Conversation) => {
        if (words.length === 0) return true;
        const items = await listItems(conversation.id);
        const texts = [conversation.metadata.title ?? "", ...items.map(textOf)].map((text) => text.toLowerCase());
        return texts.some((text) => words.every((word) => text.includes(word)));
      };
      const held = await Promise.all(all.map(holds));
      return all
        .filter((_, index) => held[index])
        .sort((one, other) => (other.last_used_at ?? 0) - (one.last_used_at ?? 0));
    },
    get: read,
    async create({ title, settings, items = [] }) {
      const conversation: Conversation = {
        id: newId(PREFIX),
        created_at: Math.floor(now()),
        last_used_at: now(),
        metadata: { title },
        settings,
        active_item_id: null,
        item_count: 0,
      };
      await use((database) => database.put("conversations", conversation));
      if (items.length > 0) await append(conversation.id, items, null);
      return conversation;
    },
    async update(id, change) {
      const changed = { ...(await read(id)), ...change, last_used_at: now() };
      await use((database) => database.put("conversations", changed));
      return changed;
    },
    async remove(id) {
      const items = await listItems(id);
      await use(async (database) => {
        const transaction = database.transaction(["items", "conversations"], "readwrite");
        for (const item of items) await transaction.objectStore("items").delete(item.id);
        await transaction.objectStore("conversations").delete(id);
        await transaction.done;
      });
    },
    listItems,
    addItems: append,
  };
}
