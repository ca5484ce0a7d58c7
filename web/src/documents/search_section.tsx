/** Tries a search: what is found, in which order, and why. */
import { useMutation } from "@tanstack/react-query";
import { type FormEvent, useState } from "react";
import { useClient } from "../api/access";
import { describeError } from "../api/client";
import { shellWord } from "../models/load_fields";
import { routeHash } from "../router";
import { Button, ErrorNote, SameByCommand } from "../ui/controls";
import { countText } from "../ui/figures";
import { CARD, Field, INPUT, Section } from "../ui/view";
import { parseAttributes } from "./attributes";
import { modeText, scoreText, whyText } from "./document_words";
import { type SearchHit, type SearchMode, type SearchRequest, type SearchResult, searchDocuments } from "./documents";

const MODES: SearchMode[] = ["sparse", "dense", "hybrid"];

export function SearchSection({ command }: { command: (what: string) => string }) {
  const client = useClient();
  const [query, setQuery] = useState("");
  const [mode, setMode] = useState<SearchMode | "">("");
  const [attributes, setAttributes] = useState("");
  const [isReranked, setReranked] = useState(false);
  const searching = useMutation({
    mutationFn: async () => searchDocuments(client, requestOf(query, mode, attributes, isReranked)),
  });

  function submit(event: FormEvent) {
    event.preventDefault();
    searching.mutate();
  }

  const options = `${mode === "" ? "" : ` --mode ${mode}`}${isReranked ? " --rerank" : ""}`;
  return (
    <Section title="Try a search">
      <form onSubmit={submit} aria-label="Try a search" className="grid gap-3 sm:grid-cols-3">
        <div className="sm:col-span-3">
          <Field label="Query">
            <input
              type="search"
              required
              className={INPUT}
              value={query}
              onChange={(event) => setQuery(event.target.value)}
            />
          </Field>
        </div>
        <Field label="Mode">
          <select className={INPUT} value={mode} onChange={(event) => setMode(event.target.value as SearchMode | "")}>
            <option value="">as the gateway does by default</option>
            {MODES.map((each) => (
              <option key={each} value={each}>
                {each}: {modeText(each)}
              </option>
            ))}
          </select>
        </Field>
        <Field label="Attributes">
          <input
            className={INPUT}
            value={attributes}
            placeholder="project=yard"
            onChange={(event) => setAttributes(event.target.value)}
          />
        </Field>
        <label className="flex items-center gap-2 self-end py-2 text-sm">
          <input type="checkbox" checked={isReranked} onChange={(event) => setReranked(event.target.checked)} />
          Rerank
        </label>
        <Button look="main" icon="search" type="submit" className="justify-self-start">
          Search
        </Button>
      </form>
      {searching.error && <ErrorNote {...describeError(searching.error)} />}
      {searching.data !== undefined && <Result result={searching.data} />}
      <SameByCommand command={command(`search ${query === "" ? "QUERY" : shellWord(query)}${options}`)} />
    </Section>
  );
}

function requestOf(query: string, mode: SearchMode | "", written: string, rerank: boolean): SearchRequest {
  const attributes = parseAttributes(written);
  return {
    query,
    top_k: 10,
    ...(mode === "" ? {} : { mode }),
    ...(rerank ? { rerank } : {}),
    ...(Object.keys(attributes).length === 0 ? {} : { filter: attributes }),
  };
}

function Result({ result }: { result: SearchResult }) {
  return (
    <div className="flex flex-col gap-2 text-sm">
      <p role="status">
        {countText(result.data.length, "passage")} found {modeText(result.mode)}
        {result.embedding_model !== null && ` (${result.embedding_model})`}
      </p>
      {!result.complete && <p className="text-warn">The index is being rebuilt: documents may be missing.</p>}
      {result.notice !== null && <p className="text-warn">{result.notice}</p>}
      <ol aria-label="Passages" className="flex flex-col gap-2">
        {result.data.map((hit) => (
          <Hit key={`${hit.document_id}:${hit.chunk}`} hit={hit} />
        ))}
      </ol>
    </div>
  );
}

function Hit({ hit }: { hit: SearchHit }) {
  return (
    <li className={CARD}>
      <p className="flex flex-wrap justify-between gap-2">
        <a href={routeHash("documents", hit.document_id)} className="min-w-0 break-all underline underline-offset-2">
          {hit.filename ?? hit.document_id}
        </a>
        <span className="tabular-nums">score {scoreText(hit.score)}</span>
      </p>
      <p className="text-faint">
        chunk {hit.chunk}
        {hit.page !== null && `, page ${hit.page}`}: {whyText(hit.scores)}
      </p>
      {hit.headings.length > 0 && <p className="font-medium">{hit.headings.join(" › ")}</p>}
      <p className="mt-1 line-clamp-6 whitespace-pre-wrap break-words">{hit.text}</p>
    </li>
  );
}
