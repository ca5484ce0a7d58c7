/** One document: its state, and its chunks as they were cut. */
import { useInfiniteQuery, useMutation, useQuery } from "@tanstack/react-query";
import { useClient } from "../api/access";
import { describeError } from "../api/client";
import { routeHash } from "../router";
import { Button, ErrorNote, SameByCommand } from "../ui/controls";
import { bytesText, timeText } from "../ui/figures";
import { saveFile } from "../ui/save_file";
import { CARD, Facts, Section, ViewFrame } from "../ui/view";
import { attributesText } from "./attributes";
import { chunkPlace, documentStatusText } from "./document_words";
import { type Chunk, type Document, documentKeys, documentQuery, readChunks, readOriginal } from "./documents";

export function DocumentPage({ id, command }: { id: string; command: string }) {
  const client = useClient();
  const document = useQuery(documentQuery(client, id));
  return (
    <ViewFrame title={document.data?.filename ?? id}>
      <a href={routeHash("documents")} className="self-start text-sm underline underline-offset-2">
        All documents
      </a>
      {document.error && <ErrorNote {...describeError(document.error)} />}
      {document.data !== undefined && <State document={document.data} command={command} />}
      {document.data?.searchable && <Chunks id={id} version={document.data.updated_at} />}
    </ViewFrame>
  );
}

function State({ document, command }: { document: Document; command: string }) {
  const client = useClient();
  const saving = useMutation({
    mutationFn: async () =>
      saveFile(
        document.filename ?? document.id,
        await readOriginal(client, document.id),
        document.media_type ?? "application/octet-stream",
      ),
  });
  return (
    <Section title="State">
      <Facts
        entries={[
          ["Status", documentStatusText(document, Date.now() / 1000)],
          ["Problem", document.error?.message],
          ["Notice", document.notice],
          ["Id", document.id],
          ["Type", document.media_type],
          ["Size", bytesText(document.bytes)],
          ["Attributes", attributesText(document.metadata)],
          [
            "Cut into",
            `at most ${document.chunking.max_tokens} tokens, ${document.chunking.overlap_tokens} of them repeated`,
          ],
          ["Added", timeText(document.created_at)],
          ["Changed", timeText(document.updated_at)],
        ]}
      />
      <Button icon="download" className="self-start" onClick={() => saving.mutate()}>
        Download the original
      </Button>
      {saving.error && <ErrorNote {...describeError(saving.error)} />}
      <SameByCommand command={command} />
    </Section>
  );
}

function Chunks({ id, version }: { id: string; version: number }) {
  const client = useClient();
  const chunks = useInfiniteQuery({
    queryKey: [...documentKeys.one(id), "chunks", version],
    queryFn: ({ pageParam }) => readChunks(client, id, pageParam),
    initialPageParam: null as number | null,
    getNextPageParam: (page) => (page.has_more ? (page.data.at(-1)?.index ?? null) : null),
  });
  const all = chunks.data?.pages.flatMap((page) => page.data) ?? [];
  return (
    <Section title="Chunks" note="The pieces that searches find, as they were cut.">
      {chunks.error && <ErrorNote {...describeError(chunks.error)} />}
      <ol aria-label="Chunks" className="flex flex-col gap-2">
        {all.map((chunk, place) => (
          <ChunkCard key={chunk.index} chunk={chunk} before={all[place - 1] ?? null} />
        ))}
      </ol>
      {chunks.hasNextPage && (
        <Button className="self-start" onClick={() => void chunks.fetchNextPage()}>
          Show more
        </Button>
      )}
    </Section>
  );
}

function ChunkCard({ chunk, before }: { chunk: Chunk; before: Chunk | null }) {
  return (
    <li aria-label={`Chunk ${chunk.index}`} className={`${CARD} text-sm`}>
      <p className="text-faint">
        {chunk.index}: {chunkPlace(chunk, before)}
      </p>
      {chunk.headings.length > 0 && <p className="font-medium">{chunk.headings.join(" › ")}</p>}
      <p className="mt-1 whitespace-pre-wrap break-words">{chunk.text}</p>
    </li>
  );
}
