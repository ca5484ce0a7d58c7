/** Conversations at the gateway (docs/conversations.md), with a copy in this browser for a lost connection. */
import type { ApiClient } from "../../api/client";
import type { Item } from "../../api/items";
import type { Conversation } from "../conversations";
import { Copies } from "./copies";
import type { ConversationStore } from "./store";

const PATH = "/v1/conversations";
/** Items of one request, and entries of one page of a list of items. */
const MOST_ITEMS = 1000;
const MOST_LISTED = 500;

export function serverStore(client: ApiClient, copies: Copies = new Copies()): ConversationStore {
  return {
    list(search) {
      const load = () => client.list<Conversation>(PATH, { limit: 100, q: search || null }, MOST_LISTED);
      return search === "" ? copies.readThrough("list", load) : load();
    },
    get: (id) => copies.readThrough(`conversation ${id}`, () => client.request<Conversation>(`${PATH}/${id}`)),
    async create({ title, settings, items = [] }) {
      const first = items.slice(0, MOST_ITEMS);
      const created = await client.request<Conversation>(PATH, {
        body: { metadata: { title }, settings, ...(first.length > 0 ? { items: first } : {}) },
      });
      for (let begin = MOST_ITEMS; begin < items.length; begin += MOST_ITEMS)
        await client.request(`${PATH}/${created.id}/items`, {
          body: { items: items.slice(begin, begin + MOST_ITEMS) },
        });
      return created;
    },
    update: (id, change) => client.request<Conversation>(`${PATH}/${id}`, { body: change }),
    async remove(id) {
      await client.request(`${PATH}/${id}`, { method: "DELETE" });
      await copies.forget(id);
    },
    listItems: (id) =>
      copies.readThrough(`items ${id}`, () =>
        client.list<Item>(`${PATH}/${id}/items`, { branch: "all", order: "asc", limit: MOST_ITEMS }, 100_000),
      ),
    async addItems(id, items, parentId) {
      await client.request(`${PATH}/${id}/items`, { body: { items, parent_id: parentId } });
    },
  };
}
