/**
 * The page's database in this browser: conversations that are kept here alone, copies of what the gateway keeps, and files
 * of messages that are not sent yet.
 */
import { type DBSchema, type IDBPDatabase, openDB } from "idb";
import type { Item } from "../../api/items";
import type { Attachment } from "../composer/attachment";
import type { Conversation } from "../conversations";

interface PageDatabase extends DBSchema {
  conversations: { key: string; value: Conversation };
  items: { key: string; value: Item & { conversation_id: string; place: number }; indexes: { conversation: string } };
  copies: { key: string; value: { key: string; at: number; data: unknown }; indexes: { at: number } };
  drafts: { key: string; value: { key: string; at: number; files: readonly Attachment[] }; indexes: { at: number } };
}

const NAME = "roundhouse";
const VERSION = 2;

/** Opens the database. Throws where the browser keeps nothing, as in some private windows. */
export function openDatabase(): Promise<IDBPDatabase<PageDatabase>> {
  return openDB<PageDatabase>(NAME, VERSION, {
    upgrade(database, before) {
      if (before < 1) {
        database.createObjectStore("conversations", { keyPath: "id" });
        database.createObjectStore("items", { keyPath: "id" }).createIndex("conversation", "conversation_id");
        database.createObjectStore("copies", { keyPath: "key" }).createIndex("at", "at");
      }
      database.createObjectStore("drafts", { keyPath: "key" }).createIndex("at", "at");
    },
  });
}
