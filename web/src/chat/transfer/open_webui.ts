/** Open WebUI's export: a list of chats, each with a tree of messages in `chat.history`. */
import { isRecord } from "../../api/errors";
import { activeMessage, childrenOf, itemsOf, messagesOf, type PlainMessage } from "./messages";
import { ImportProblem, type Portable } from "./portable";

interface Chat {
  title?: unknown;
  created_at?: unknown;
  chat: Record<string, unknown> & { history: Record<string, unknown> & { messages: Record<string, unknown> } };
}

export function readOpenWebUi(json: unknown): Portable[] | null {
  const listed = Array.isArray(json) ? json : [json];
  if (listed.length === 0 || !listed.every(isChat)) return null;
  return (listed as Chat[]).map(({ title, created_at: createdAt, chat }) => {
    const messages = Object.entries(chat.history.messages).map(([id, message]) => readMessage(id, message));
    const models = Array.isArray(chat.models)
      ? chat.models.filter((model): model is string => typeof model === "string")
      : [];
    const named = [title, chat.title].find((each): each is string => typeof each === "string" && each !== "");
    return {
      title: named ?? "Imported conversation",
      createdAt: typeof createdAt === "number" ? createdAt : null,
      settings: models[0] === undefined ? {} : { model: models[0] },
      items: itemsOf(messages),
      activeId: typeof chat.history.currentId === "string" ? chat.history.currentId : null,
    };
  });
}

function isChat(value: unknown): boolean {
  return (
    isRecord(value) && isRecord(value.chat) && isRecord(value.chat.history) && isRecord(value.chat.history.messages)
  );
}

const THOUGHTS = /<details type="reasoning"[^>]*>\s*(?:<summary>.*?<\/summary>)?([\s\S]*?)<\/details>\s*/;

function readMessage(id: string, message: unknown): PlainMessage {
  if (!isRecord(message)) throw new ImportProblem(`The message ${id} is no object.`);
  const files = Array.isArray(message.files) ? message.files.filter(isRecord) : [];
  const content = typeof message.content === "string" ? message.content : "";
  // Open WebUI keeps thoughts as HTML before the answer, each line quoted.
  const thoughts = THOUGHTS.exec(content);
  return {
    id,
    parentId: typeof message.parentId === "string" ? message.parentId : null,
    role: message.role === "user" || message.role === "assistant" ? message.role : "system",
    text: content.replace(THOUGHTS, ""),
    reasoning: (thoughts?.[1] ?? "").trim().replace(/^> ?/gm, ""),
    images: files.flatMap((file) =>
      file.type === "image" && typeof file.url === "string" && file.url.startsWith("data:image/") ? [file.url] : [],
    ),
  };
}

export function writeOpenWebUi(conversations: readonly Portable[]): unknown {
  return conversations.map((portable, index) => {
    const messages = messagesOf(portable);
    const children = childrenOf(messages);
    const entries = messages.map(({ id, parentId, role, text, images }) => [
      id,
      {
        id,
        parentId,
        childrenIds: children.get(id) ?? [],
        role,
        content: text,
        timestamp: portable.createdAt,
        ...(images.length === 0 ? {} : { files: images.map((url) => ({ type: "image", url })) }),
      },
    ]);
    const models = portable.settings.model === undefined ? [] : [portable.settings.model];
    return {
      id: `roundhouse-${index + 1}`,
      title: portable.title,
      created_at: portable.createdAt,
      updated_at: portable.createdAt,
      chat: {
        title: portable.title,
        models,
        history: { messages: Object.fromEntries(entries), currentId: activeMessage(portable, messages) },
      },
    };
  });
}
