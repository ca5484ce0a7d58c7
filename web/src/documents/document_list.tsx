/** The documents, with how far each is, filters and deletion. */
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { useClient } from "../api/access";
import { describeError } from "../api/client";
import { routeHash } from "../router";
import { ConfirmButton } from "../ui/confirm_button";
import { Button, ErrorNote, Meter, SameByCommand, showCode } from "../ui/controls";
import { bytesText, timeText } from "../ui/figures";
import { Field, INPUT, Section } from "../ui/view";
import { type Attributes, attributesText, parseAttributes } from "./attributes";
import { documentStatusText, progressShare } from "./document_words";
import {
  type Document,
  type DocumentStatus,
  deleteDocument,
  documentKeys,
  documentsQuery,
  isUnderWay,
  STATUSES,
} from "./documents";

const STEP = 100;

export function DocumentList({ command }: { command: string }) {
  const client = useClient();
  const [status, setStatus] = useState<DocumentStatus | "">("");
  const [written, setWritten] = useState("");
  const [name, setName] = useState("");
  const [most, setMost] = useState(STEP);
  const { attributes, problem } = readAttributes(written);
  const documents = useQuery({
    ...documentsQuery(client, { status, attributes, most }),
    placeholderData: (earlier) => earlier,
  });
  const shown = documents.data?.filter((document) => titleOf(document).toLowerCase().includes(name.toLowerCase()));
  return (
    <Section title="Your documents">
      <div className="grid gap-3 sm:grid-cols-3">
        <Field label="Name">
          <input type="search" className={INPUT} value={name} onChange={(event) => setName(event.target.value)} />
        </Field>
        <Field label="Status">
          <select
            className={INPUT}
            value={status}
            onChange={(event) => setStatus(event.target.value as DocumentStatus | "")}
          >
            <option value="">any</option>
            {STATUSES.map((each) => (
              <option key={each}>{each}</option>
            ))}
          </select>
        </Field>
        <Field label="Attributes" note={problem}>
          <input
            className={INPUT}
            value={written}
            placeholder="project=yard"
            aria-invalid={problem !== undefined}
            onChange={(event) => setWritten(event.target.value)}
          />
        </Field>
      </div>
      {documents.error && <ErrorNote {...describeError(documents.error)} />}
      {shown?.length === 0 && <p className="text-sm text-faint">No documents.</p>}
      <ul aria-label="Documents" className="flex flex-col">
        {shown?.map((document) => (
          <DocumentRow key={document.id} document={document} />
        ))}
      </ul>
      {documents.data !== undefined && documents.data.length >= most && (
        <Button className="self-start" onClick={() => setMost(most + STEP)}>
          Show more
        </Button>
      )}
      <SameByCommand command={command} />
    </Section>
  );
}

function DocumentRow({ document }: { document: Document }) {
  const client = useClient();
  const queries = useQueryClient();
  const deletion = useMutation({
    mutationFn: () => deleteDocument(client, document.id),
    onSettled: () => queries.invalidateQueries({ queryKey: documentKeys.all }),
  });
  const title = titleOf(document);
  const share = isUnderWay(document) ? progressShare(document) : null;
  const attributes = attributesText(document.metadata);
  const error = document.error;
  return (
    <li aria-label={title} className="flex flex-col gap-1 border-b border-line py-2 text-sm">
      <div className="flex flex-wrap items-center justify-between gap-2">
        <a href={routeHash("documents", document.id)} className="min-w-0 break-all underline underline-offset-2">
          {title}
        </a>
        <ConfirmButton label={`Delete ${title}`} question="Delete it?" onConfirm={() => deletion.mutate()}>
          Delete
        </ConfirmButton>
      </div>
      <p className="text-faint">
        {documentStatusText(document, Date.now() / 1000)}; {bytesText(document.bytes)}; {timeText(document.updated_at)}
        {attributes !== "" && `; ${attributes}`}
      </p>
      {share !== null && <Meter label="Indexed" share={share} text="" />}
      {error !== null && <p className="break-words text-bad">{showCode(error.message)}</p>}
      {deletion.error && <ErrorNote {...describeError(deletion.error)} />}
    </li>
  );
}

/** Returns what a document is called. */
function titleOf(document: Document): string {
  return document.filename ?? document.id;
}

function readAttributes(written: string): { attributes: Attributes; problem: string | undefined } {
  try {
    return { attributes: parseAttributes(written), problem: undefined };
  } catch (error) {
    return { attributes: {}, problem: error instanceof Error ? error.message : String(error) };
  }
}
