/** One item of a conversation. A new type of item is one case here. */
import { memo } from "react";
import { type ContentPart, type Item, textOf } from "../../api/items";
import { Markdown } from "../markdown/markdown";

export const ItemView = memo(function ItemView({ item, isRunning }: { item: Item; isRunning: boolean }) {
  switch (item.type) {
    case "message":
      return item.role === "assistant" ? (
        <AnswerText item={item} isRunning={isRunning} />
      ) : (
        <MessageParts parts={item.content ?? []} />
      );
    case "reasoning":
      return <Reasoning item={item} isRunning={isRunning} />;
    case "mcp_call":
    case "function_call":
      return <ToolCall item={item} />;
    default:
      return null;
  }
});

function AnswerText({ item, isRunning }: { item: Item; isRunning: boolean }) {
  return (
    <div>
      <Markdown text={textOf(item)} isGrowing={isRunning} />
      {item.status === "incomplete" && <p className="mt-1 text-sm text-warn">This answer was cut short.</p>}
    </div>
  );
}

function MessageParts({ parts }: { parts: ContentPart[] }) {
  return (
    <>
      {parts.map((part, index) => {
        const key = `${part.type}-${index}`;
        if (part.type === "input_text")
          return (
            <p key={key} className="whitespace-pre-wrap break-words">
              {part.text}
            </p>
          );
        if (part.type === "input_image" && part.image_url?.startsWith("data:image/"))
          return <img key={key} src={part.image_url} alt="Attached" className="max-h-64 rounded-md" />;
        if (part.type === "input_file")
          return (
            <p key={key} className="text-sm text-faint">
              {part.filename ?? "File"}
            </p>
          );
        return null;
      })}
    </>
  );
}

function Reasoning({ item, isRunning }: { item: Item; isRunning: boolean }) {
  const text = textOf(item) || textOf({ content: item.summary ?? [] });
  if (text === "") return null;
  return (
    <details className="rounded-md border border-line px-3 py-1 text-sm text-faint">
      <summary className="cursor-pointer">{isRunning ? "Thinking…" : "Thoughts"}</summary>
      <Markdown text={text} isGrowing={isRunning} />
    </details>
  );
}

function ToolCall({ item }: { item: Item }) {
  return (
    <details className="rounded-md border border-line px-3 py-1 text-sm">
      <summary className="cursor-pointer">
        Tool <code>{item.server_label ? `${item.server_label}/${item.name}` : item.name}</code>
      </summary>
      <pre className="overflow-x-auto whitespace-pre-wrap break-words text-xs">{item.arguments}</pre>
      {item.output && <pre className="overflow-x-auto whitespace-pre-wrap break-words text-xs">{item.output}</pre>}
    </details>
  );
}
