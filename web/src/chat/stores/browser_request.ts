/** Requests for conversations that the gateway does not keep: the whole branch is sent, and nothing is stored. */
import type { Item } from "../../api/items";
import type { Conversation } from "../conversations";
import { growTree, pathTo } from "../item_tree";
import { requestFields } from "../request_fields";
import { browserStore } from "./browser_store";

/** Returns the fields of `POST /v1/responses` for the next answer of a conversation in the browser. */
export async function browserRequest(conversation: Conversation, model?: string): Promise<Record<string, unknown>> {
  const store = browserStore();
  const [current, items] = await Promise.all([store.get(conversation.id), store.listItems(conversation.id)]);
  const path = pathTo(growTree(items), current.active_item_id ?? null);
  const { conversation: _, ...fields } = requestFields(conversation, model);
  return { ...fields, store: false, input: path.map(inputItem) };
}

/** Items that the gateway knows again by their ids: requests for calls of tools, and the calls that were made. */
const KNOWN_BY_ID: ReadonlySet<string> = new Set(["mcp_approval_request", "mcp_call"]);

function inputItem({ id, parent_id: _, status, ...item }: Item): object {
  const kept = status === "incomplete" ? { ...item, status } : item;
  return KNOWN_BY_ID.has(item.type) ? { ...kept, id } : kept;
}
