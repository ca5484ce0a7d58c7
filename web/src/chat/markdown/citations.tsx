/** Citations of documents: `[1]` in an answer's text becomes a mark that opens the passage. */
import { useQuery } from "@tanstack/react-query";
import type { Root, RootContent } from "mdast";
import { createContext, type ReactNode, use, useState } from "react";
import { createPortal } from "react-dom";
import { useClient } from "../../api/access";
import { isRecord } from "../../api/errors";
import type { Annotation, Item } from "../../api/items";
import { Dialog } from "../../ui/controls";
import { readPassage } from "./passages";

/** A passage that a text cites. */
export interface Source {
  number: number;
  documentId: string;
  filename: string;
  /** From 1; null: the format has no pages. */
  page: number | null;
  /** Position of the chunk in the document, from 0; null: it is not known. */
  chunk: number | null;
  /** Its first byte in the document's text (UTF-8), and the one after its last; null: they are not known. */
  bytes: { start: number; end: number } | null;
}

/** Returns the passages that a text's annotations name, by their numbers. */
export function sourcesOf(annotations: readonly Annotation[]): ReadonlyMap<number, Source> {
  const sources = new Map<number, Source>();
  for (const { type, number, document_id, file_id, filename, page, chunk, start, end } of annotations) {
    const documentId = document_id ?? file_id;
    if (type !== "file_citation" || typeof number !== "number" || typeof documentId !== "string") continue;
    sources.set(number, {
      number,
      documentId,
      filename: filename ?? documentId,
      page: typeof page === "number" ? page : null,
      chunk: typeof chunk === "number" ? chunk : null,
      bytes: typeof start === "number" && typeof end === "number" ? { start, end } : null,
    });
  }
  return sources;
}

export const SourcesContext = createContext<ReadonlyMap<number, Source>>(new Map());
/**
 * Returns the items of the answer around a text: a search among them may hold the passages. A function, because React
 * looks through all of a long answer whenever the value of a context changes, which the items do with each piece.
 */
export const AnswerItemsContext = createContext<() => readonly Item[]>(() => []);

/** Has remark write `[n]` as an element `sup` with `data-citation`, for the numbers that are sources. Not within code. */
export function remarkCitations({ numbers }: { numbers: ReadonlySet<number> }) {
  return (tree: Root) => markChildren(tree, numbers);
}

function markChildren(node: { children: RootContent[] }, numbers: ReadonlySet<number>): void {
  node.children = node.children.flatMap((child) => {
    if (child.type === "text") return splitText(child.value, numbers);
    if ("children" in child) markChildren(child as { children: RootContent[] }, numbers);
    return [child];
  });
}

function splitText(text: string, numbers: ReadonlySet<number>): RootContent[] {
  return text
    .split(/(\[\d{1,3}\])/)
    .filter((piece) => piece !== "")
    .map((piece): RootContent => {
      const number = Number(/^\[(\d+)\]$/.exec(piece)?.[1] ?? Number.NaN);
      if (!numbers.has(number)) return { type: "text", value: piece };
      const data = { hName: "sup", hProperties: { dataCitation: String(number) } };
      return { type: "emphasis", data, children: [{ type: "text", value: piece }] };
    });
}

/** The mark of a citation. Shows `children` alone for a number without a source. */
export function Citation({ number, children }: { number: number; children: ReactNode }) {
  const source = use(SourcesContext).get(number);
  const [isOpen, setOpen] = useState(false);
  if (source === undefined) return <sup>{children}</sup>;
  return (
    <>
      <sup>
        <button
          type="button"
          aria-label={`Source ${number}: ${source.filename}`}
          title={source.filename}
          onClick={() => setOpen(true)}
          className="mx-0.5 min-h-6 min-w-6 cursor-pointer rounded bg-panel px-1 text-accent hover:underline"
        >
          {number}
        </button>
      </sup>
      {isOpen &&
        createPortal(
          <Dialog title={source.filename} isOpen onClose={() => setOpen(false)}>
            <Passage source={source} />
          </Dialog>,
          document.body,
        )}
    </>
  );
}

function Passage({ source }: { source: Source }) {
  const client = useClient();
  const found = foundText(use(AnswerItemsContext)(), source);
  const read = useQuery({
    queryKey: ["passages", source.documentId, source.chunk],
    queryFn: () => readPassage(client, source),
    enabled: found === null,
    retry: false,
  });
  const text = found ?? read.data ?? null;
  return (
    <>
      <p className="mb-2 text-sm text-faint">
        Passage {source.number}
        {source.page !== null && `, page ${source.page}`}
      </p>
      {text !== null && <blockquote className="whitespace-pre-wrap break-words">{text}</blockquote>}
      {text === null && read.isPending && <p className="text-sm text-faint">Loading…</p>}
      {text === null && !read.isPending && (
        <p className="text-sm text-faint">The passage cannot be shown: the document may have been deleted.</p>
      )}
    </>
  );
}

/** Returns the passage as the answer's own search found it: its results are in the order of their numbers. */
function foundText(items: readonly Item[], source: Source): string | null {
  for (const { type, results } of items) {
    if (type !== "file_search_call" || !Array.isArray(results)) continue;
    const result: unknown = results[source.number - 1];
    if (isRecord(result) && result.file_id === source.documentId && typeof result.text === "string") return result.text;
  }
  return null;
}
