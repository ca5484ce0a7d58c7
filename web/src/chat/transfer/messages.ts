/** Conversations as trees of plain messages, which is what other programs keep. Pure. */
import type { ContentPart, Item } from "../../api/items";
import { textOf } from "../../api/items";
import { orderItems, type Portable } from "./portable";

export interface PlainMessage {
  id: string;
  parentId: string | null;
  role: "user" | "assistant" | "system";
  text: string;
  /** The model's thoughts before its answer; empty: none. */
  reasoning: string;
  /** `data:` addresses of attached images. */
  images: string[];
}

/** Returns the items of plain messages. Thoughts become an item of their own before the answer's. */
export function itemsOf(messages: readonly PlainMessage[]): Item[] {
  const last = new Map<string, string>(messages.map((message) => [message.id, message.id]));
  const items: Item[] = [];
  for (const { id, parentId, role, text, reasoning, images } of messages) {
    let parent = parentId === null ? null : (last.get(parentId) ?? null);
    if (reasoning !== "") {
      const thought: Item = {
        id: `${id}-thought`,
        type: "reasoning",
        parent_id: parent,
        summary: [],
        content: [{ type: "reasoning_text", text: reasoning }],
      };
      items.push(thought);
      parent = thought.id;
    }
    const content: ContentPart[] =
      role === "assistant"
        ? [{ type: "output_text", text, annotations: [] }]
        : [
            { type: "input_text", text },
            ...images.map((url): ContentPart => ({ type: "input_image", image_url: url, detail: "auto" })),
          ];
    items.push({ id, type: "message", role, parent_id: parent, content });
  }
  return orderItems(items);
}

/** Returns the messages of a conversation. Calls of tools are left out: other programs keep them in forms of their own. */
export function messagesOf(portable: Portable): PlainMessage[] {
  const byId = new Map(portable.items.map((item) => [item.id, item]));
  const isMessage = (item: Item) => item.type === "message" && item.role !== undefined;
  return portable.items.filter(isMessage).map((item) => {
    let reasoning = "";
    let parent = item.parent_id === null ? undefined : byId.get(item.parent_id);
    while (parent !== undefined && !isMessage(parent)) {
      if (parent.type === "reasoning") reasoning = textOf(parent) + reasoning;
      parent = parent.parent_id === null ? undefined : byId.get(parent.parent_id);
    }
    return {
      id: item.id,
      parentId: parent?.id ?? null,
      role: item.role === "assistant" || item.role === "user" ? item.role : "system",
      text: textOf(item),
      reasoning,
      images: (item.content ?? []).flatMap((part) =>
        part.type === "input_image" && part.image_url?.startsWith("data:") ? [part.image_url] : [],
      ),
    };
  });
}

/** Returns the ids of each message's children, by id. */
export function childrenOf(messages: readonly PlainMessage[]): Map<string, string[]> {
  const children = new Map<string, string[]>(messages.map((message) => [message.id, []]));
  for (const { id, parentId } of messages) if (parentId !== null) children.get(parentId)?.push(id);
  return children;
}

/** Returns the message at the end of the branch that is shown; null for no messages. */
export function activeMessage(portable: Portable, messages: readonly PlainMessage[]): string | null {
  const byId = new Map(portable.items.map((item) => [item.id, item]));
  const known = new Set(messages.map((message) => message.id));
  let id = portable.activeId ?? portable.items.at(-1)?.id ?? null;
  while (id !== null && !known.has(id)) id = byId.get(id)?.parent_id ?? null;
  return id;
}
