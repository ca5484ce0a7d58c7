/** The page's database in this browser: conversations that are kept here alone, and copies of what the gateway keeps. */
import { type DBSchema, type IDBPDatabase, openDB } from "idb";
import type { Item } from "../../api/items";
import type { Conversation } from "../conversations";

interface PageDatabase extends DBSchema {
  conversations: { key: string; value: Conversation };
  items: { key: string; value: Item & { conversation_id: string; place: number }; indexes: { conversation: string } };
  copies: { key: string; value: { key: string; at: number; data: unknown }; indexes: { at: number } };
}

const NAME = "roundhouse";
const VERSION = 1;

/** Opens the database. Throws where the browser keeps nothing, as in some private windows. */
export function openDatabase(): Promise<IDBPDatabase<PageDatabase>> {
  return openDB<PageDatabase>(NAME, VERSION, {
    upgrade(database) {
      database.createObjectStore("conversations", { keyPath: "id" });
      database.createObjectStore("items", { keyPath: "id" }).createIndex("conversation", "conversation_id");
      database.createObjectStore("copies", { keyPath: "key" }).createIndex("at", "at");
    },
  });
}
