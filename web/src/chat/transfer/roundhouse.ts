/** Our own format: items as the API has them, with all branches. */
import { isRecord } from "../../api/errors";
import type { Item } from "../../api/items";
import type { ConversationSettings } from "../conversations";
import { ImportProblem, orderItems, type Portable } from "./portable";

const FORMAT = "roundhouse-conversations";
const VERSION = 1;

export function readRoundhouse(json: unknown): Portable[] | null {
  if (!isRecord(json) || json.format !== FORMAT) return null;
  if (json.version !== VERSION)
    throw new ImportProblem(`The file has version ${json.version}; this page reads ${VERSION}.`);
  if (!Array.isArray(json.conversations)) throw new ImportProblem("`conversations` is not a list.");
  return json.conversations.map((each, index) => {
    if (!isRecord(each) || !Array.isArray(each.items))
      throw new ImportProblem(`Conversation ${index + 1} has no \`items\`.`);
    const items = each.items.map((item, place) => {
      if (!isRecord(item) || typeof item.id !== "string" || typeof item.type !== "string")
        throw new ImportProblem(`Item ${place + 1} of conversation ${index + 1} has no \`id\` or no \`type\`.`);
      return { ...item, parent_id: typeof item.parent_id === "string" ? item.parent_id : null } as Item;
    });
    return {
      title: typeof each.title === "string" ? each.title : "Imported conversation",
      createdAt: typeof each.created_at === "number" ? each.created_at : null,
      settings: (isRecord(each.settings) ? each.settings : {}) as ConversationSettings,
      items: orderItems(items),
      activeId: typeof each.active_item_id === "string" ? each.active_item_id : null,
    };
  });
}

export function writeRoundhouse(conversations: readonly Portable[]): unknown {
  return {
    format: FORMAT,
    version: VERSION,
    conversations: conversations.map((each) => ({
      title: each.title,
      created_at: each.createdAt,
      settings: each.settings,
      active_item_id: each.activeId,
      items: each.items,
    })),
  };
}
