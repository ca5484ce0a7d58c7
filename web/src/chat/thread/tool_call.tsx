/** Calls of tools and what they gave: by the gateway's own servers of tools, by the client's functions, by a search in files. */
import { isRecord } from "../../api/errors";
import type { Item } from "../../api/items";
import { FoldedText, prettyJson } from "./folded_text";

const CARD = "rounded-md border border-line px-3 py-1 text-sm";

/** Returns a tool's name as users see it, and as `approvedTools` has it: `server/tool`. */
export function toolNameOf(item: Item): string {
  return item.server_label ? `${item.server_label}/${item.name ?? ""}` : (item.name ?? "");
}

export function ToolCall({ item }: { item: Item }) {
  const error = errorText(item.error);
  return (
    <details className={CARD}>
      <summary className="cursor-pointer py-1">
        Tool <code className="break-all">{toolNameOf(item)}</code> <Outcome item={item} isFailed={error !== null} />
      </summary>
      <FoldedText label="Arguments" text={prettyJson(item.arguments ?? "")} />
      {typeof item.output === "string" && <FoldedText label="Result" text={prettyJson(item.output)} />}
      {error !== null && <FoldedText label="Error" text={error} />}
    </details>
  );
}

function Outcome({ item, isFailed }: { item: Item; isFailed: boolean }) {
  if (isFailed || item.status === "failed") return <span className="text-bad">failed</span>;
  if (item.status === "in_progress" || item.status === "calling") return <span className="text-faint">runs…</span>;
  if (item.status === "incomplete") return <span className="text-warn">was cut short</span>;
  return null;
}

/** The result that a client gave for a call of its own function. */
export function FunctionResult({ item }: { item: Item }) {
  const { output } = item as { output?: unknown };
  const text = typeof output === "string" ? output : JSON.stringify(output ?? "");
  return (
    <details className={CARD}>
      <summary className="cursor-pointer py-1">Result of a function</summary>
      <FoldedText label="Result" text={prettyJson(text)} />
    </details>
  );
}

/** The tools of a server that the model was offered; or why they are not known. */
export function ToolList({ item }: { item: Item }) {
  const tools = item.tools ?? [];
  const error = errorText(item.error);
  return (
    <details className={`${CARD} text-faint`}>
      <summary className="cursor-pointer py-1">
        {error === null ? `Tools of ${item.server_label}: ${tools.length}` : `No tools of ${item.server_label}`}
      </summary>
      {error !== null && <p className="break-words text-bad">{error}</p>}
      <ul className="list-disc pl-5">
        {tools.map(({ name, description }) => (
          <li key={name} className="break-words">
            <code>{name}</code> {description}
          </li>
        ))}
      </ul>
    </details>
  );
}

/** A search in documents, and what it has found, if the response was asked to say it. */
export function FileSearch({ item }: { item: Item }) {
  const queries = Array.isArray(item.queries) ? item.queries.filter((each) => typeof each === "string") : [];
  const results = Array.isArray(item.results) ? item.results.filter(isRecord) : [];
  return (
    <details className={`${CARD} text-faint`}>
      <summary className="cursor-pointer py-1">
        Searched the documents
        {results.length > 0 && `: ${results.length} ${results.length === 1 ? "passage" : "passages"}`}
      </summary>
      {queries.map((query) => (
        <p key={query} className="break-words">
          For “{query}”
        </p>
      ))}
      {results.map((result, index) => {
        const label = `${index + 1}. ${String(result.filename ?? "")}`;
        return <FoldedText key={label} label={label} text={String(result.text ?? "")} />;
      })}
    </details>
  );
}

/** Returns what an error of a call says; null for no error. */
export function errorText(error: unknown): string | null {
  if (error === null || error === undefined) return null;
  if (typeof error === "string") return error;
  if (!isRecord(error)) return "The call failed.";
  const content = Array.isArray(error.content) ? error.content : [];
  const texts = content.flatMap((part) => (isRecord(part) && typeof part.text === "string" ? [part.text] : []));
  if (texts.length > 0) return texts.join("\n");
  return typeof error.message === "string" ? error.message : JSON.stringify(error);
}
