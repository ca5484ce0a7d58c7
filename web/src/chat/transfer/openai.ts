/** OpenAI's export of ChatGPT (`conversations.json`): a list of trees, whose nodes are messages. */
import { isRecord } from "../../api/errors";
import { activeMessage, childrenOf, itemsOf, messagesOf, type PlainMessage } from "./messages";
import { ImportProblem, type Portable } from "./portable";

export function readOpenAi(json: unknown): Portable[] | null {
  const listed = Array.isArray(json) ? json : [json];
  if (listed.length === 0 || !listed.every((each) => isRecord(each) && isRecord(each.mapping))) return null;
  return listed.map((each: Record<string, unknown>) => {
    const nodes = Object.entries(each.mapping as Record<string, unknown>);
    const messages = nodes.flatMap(([id, node]) => readNode(id, node, each.mapping as Record<string, unknown>));
    return {
      title: typeof each.title === "string" && each.title !== "" ? each.title : "Imported conversation",
      createdAt: typeof each.create_time === "number" ? Math.floor(each.create_time) : null,
      settings: {},
      items: itemsOf(messages),
      activeId: typeof each.current_node === "string" ? each.current_node : null,
    };
  });
}

function readNode(id: string, node: unknown, mapping: Record<string, unknown>): PlainMessage[] {
  if (!isRecord(node)) throw new ImportProblem(`The node ${id} is no object.`);
  const message = node.message;
  if (!isRecord(message) || !isMessage(message)) return [];
  const role = isRecord(message.author) ? message.author.role : null;
  return [
    {
      id,
      parentId: nearestMessage(node.parent, mapping),
      role: role === "user" ? "user" : role === "assistant" ? "assistant" : "system",
      text: textOf(message),
      reasoning: "",
      images: [],
    },
  ];
}

/** Whether a node's message is one that was said: neither empty, nor a call of a tool, nor its result. */
function isMessage(message: Record<string, unknown>): boolean {
  const role = isRecord(message.author) ? message.author.role : null;
  const isSaid = role === "user" || role === "assistant" || role === "system";
  return isSaid && (message.recipient === undefined || message.recipient === "all") && textOf(message) !== "";
}

function textOf(message: Record<string, unknown>): string {
  const parts = isRecord(message.content) && Array.isArray(message.content.parts) ? message.content.parts : [];
  return parts.filter((part): part is string => typeof part === "string").join("\n");
}

function nearestMessage(parent: unknown, mapping: Record<string, unknown>): string | null {
  let id = typeof parent === "string" ? parent : null;
  const seen = new Set<string>();
  while (id !== null && !seen.has(id)) {
    seen.add(id);
    const node = mapping[id];
    if (!isRecord(node)) return null;
    if (isRecord(node.message) && isMessage(node.message)) return id;
    id = typeof node.parent === "string" ? node.parent : null;
  }
  return null;
}

export function writeOpenAi(conversations: readonly Portable[]): unknown {
  return conversations.map((portable) => {
    const messages = messagesOf(portable);
    const children = childrenOf(messages);
    const nodes = messages.map(({ id, parentId, role, text }) => [
      id,
      {
        id,
        parent: parentId ?? "root",
        children: children.get(id) ?? [],
        message: {
          id,
          author: { role, name: null, metadata: {} },
          create_time: portable.createdAt,
          content: { content_type: "text", parts: [text] },
          status: "finished_successfully",
          recipient: "all",
          metadata: {},
        },
      },
    ]);
    const first = messages.filter((message) => message.parentId === null).map((message) => message.id);
    return {
      title: portable.title,
      create_time: portable.createdAt,
      update_time: portable.createdAt,
      mapping: { root: { id: "root", message: null, parent: null, children: first }, ...Object.fromEntries(nodes) },
      current_node: activeMessage(portable, messages) ?? "root",
    };
  });
}
