/** One item of a conversation. A new type of item is one case here. */
import { memo, use } from "react";
import { type Annotation, type Item, textOf } from "../../api/items";
import { Markdown } from "../markdown/markdown";
import { ApprovalRequest } from "./approvals";
import { MessageParts } from "./message_parts";
import { Reasoning } from "./reasoning";
import { FileSearch, FunctionResult, ToolCall, ToolList } from "./tool_call";
import { NearContext } from "./use_is_near";

interface ItemProps {
  item: Item;
  /** Whether more of it comes. */
  isRunning: boolean;
  /** How long it took, in milliseconds; null: it is not known. */
  tookMs?: number | null;
}

export const ItemView = memo(function ItemView({ item, isRunning, tookMs = null }: ItemProps) {
  switch (item.type) {
    case "message":
      return item.role === "assistant" ? (
        <AnswerText item={item} isRunning={isRunning} />
      ) : (
        <MessageParts parts={item.content ?? []} />
      );
    case "reasoning":
      return <Reasoning item={item} isRunning={isRunning} tookMs={tookMs} />;
    case "mcp_call":
    case "function_call":
    case "custom_tool_call":
      return <ToolCall item={item} />;
    case "function_call_output":
    case "custom_tool_call_output":
      return <FunctionResult item={item} />;
    case "mcp_list_tools":
      return <ToolList item={item} />;
    case "mcp_approval_request":
      return <ApprovalRequest item={item} />;
    case "file_search_call":
      return <FileSearch item={item} />;
    default:
      return null;
  }
});

const NO_ANNOTATIONS: readonly Annotation[] = [];

function AnswerText({ item, isRunning }: ItemProps) {
  const text = textOf(item);
  const part = item.content?.find((each) => each.type === "output_text");
  const isNear = use(NearContext);
  return (
    <div>
      {isNear ? (
        <Markdown text={text} isGrowing={isRunning} annotations={part?.annotations ?? NO_ANNOTATIONS} />
      ) : (
        <p className="whitespace-pre-wrap break-words leading-relaxed">{text}</p>
      )}
      {item.status === "incomplete" && <p className="mt-1 text-sm text-warn">This answer was cut short.</p>}
    </div>
  );
}
