/** The export of llama.cpp's page: a list of `{conv, messages}`, or one of them. Each has a message of type `root`. */
import { isRecord } from "../../api/errors";
import { activeMessage, childrenOf, itemsOf, messagesOf, type PlainMessage } from "./messages";
import { ImportProblem, type Portable } from "./portable";

export function readLlamaCpp(json: unknown): Portable[] | null {
  const listed = Array.isArray(json) ? json : [json];
  const isOurs = (each: unknown) => isRecord(each) && isRecord(each.conv) && Array.isArray(each.messages);
  if (listed.length === 0 || !listed.every(isOurs)) return null;
  return listed.map((each: { conv: Record<string, unknown>; messages: unknown[] }) => {
    const records = each.messages.map((message, index) => {
      if (!isRecord(message)) throw new ImportProblem(`Message ${index + 1} of "${each.conv.name}" is no object.`);
      return message;
    });
    const roots = new Set(records.filter((message) => message.type === "root").map((message) => String(message.id)));
    const messages = records.filter((message) => message.type !== "root").map((message) => readMessage(message, roots));
    const modified = each.conv.lastModified;
    return {
      title: typeof each.conv.name === "string" ? each.conv.name : "Imported conversation",
      createdAt: typeof modified === "number" ? Math.floor(modified / 1000) : null,
      settings: {},
      items: itemsOf(messages),
      activeId: each.conv.currNode === undefined || each.conv.currNode === null ? null : String(each.conv.currNode),
    };
  });
}

function readMessage(message: Record<string, unknown>, roots: ReadonlySet<string>): PlainMessage {
  const parent = message.parent === undefined || message.parent === null ? null : String(message.parent);
  const extra = Array.isArray(message.extra) ? message.extra.filter(isRecord) : [];
  const texts = extra.filter((each) => each.type !== "IMAGE" && typeof each.content === "string");
  const attached = texts
    .map((each) => `\n\n--- ${String(each.name ?? "attachment")} ---\n${String(each.content)}`)
    .join("");
  const reasoning = message.reasoningContent ?? message.thinking;
  return {
    id: String(message.id),
    parentId: parent === null || parent === "-1" || roots.has(parent) ? null : parent,
    role: message.role === "user" || message.role === "assistant" ? message.role : "system",
    text: (typeof message.content === "string" ? message.content : "") + attached,
    reasoning: typeof reasoning === "string" ? reasoning : "",
    images: extra.flatMap((each) =>
      typeof each.base64Url === "string" && each.base64Url.startsWith("data:image/") ? [each.base64Url] : [],
    ),
  };
}

export function writeLlamaCpp(conversations: readonly Portable[]): unknown {
  return conversations.map((portable, index) => {
    const messages = messagesOf(portable);
    const children = childrenOf(messages);
    const convId = `roundhouse-${index + 1}`;
    const rootId = `${convId}-root`;
    const at = (portable.createdAt ?? 0) * 1000;
    const first = messages.filter((message) => message.parentId === null).map((message) => message.id);
    const root = {
      id: rootId,
      convId,
      type: "root",
      timestamp: at,
      role: "system",
      content: "",
      parent: null,
      children: first,
    };
    return {
      conv: {
        id: convId,
        name: portable.title,
        lastModified: at,
        currNode: activeMessage(portable, messages) ?? rootId,
      },
      messages: [
        root,
        ...messages.map(({ id, parentId, role, text, reasoning, images }) => ({
          id,
          convId,
          type: "text",
          timestamp: at,
          role,
          content: text,
          parent: parentId ?? rootId,
          children: children.get(id) ?? [],
          ...(reasoning === "" ? {} : { reasoningContent: reasoning }),
          ...(images.length === 0
            ? {}
            : { extra: images.map((url, place) => ({ type: "IMAGE", name: `image-${place + 1}`, base64Url: url })) }),
        })),
      ],
    };
  });
}
