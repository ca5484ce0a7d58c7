/** Requests for conversations that the gateway does not keep: the whole branch is sent, and nothing is stored. */
import type { Item } from "../../api/items";
import type { Conversation } from "../conversations";
import { growTree, pathTo } from "../item_tree";
import { requestFields } from "../request_fields";
import { browserStore } from "./browser_store";

/** Returns the fields of `POST /v1/responses` for an answer below `parentId` in a conversation in the browser. */
export async function browserRequest(
  conversation: Conversation,
  parentId: string | null,
  model?: string,
): Promise<Record<string, unknown>> {
  const path = pathTo(growTree(await browserStore().listItems(conversation.id)), parentId);
  const { conversation: _, ...fields } = requestFields(conversation, parentId, model);
  return { ...fields, store: false, input: path.map(inputItem) };
}

/** Items that the gateway knows again by their ids: requests for calls of tools, and the calls that were made. */
const KNOWN_BY_ID: ReadonlySet<string> = new Set(["mcp_approval_request", "mcp_call"]);

function inputItem({ id, parent_id: _, answer: __, status, ...item }: Item): object {
  const kept = status === "incomplete" ? { ...item, status } : item;
  return KNOWN_BY_ID.has(item.type) ? { ...kept, id } : kept;
}
