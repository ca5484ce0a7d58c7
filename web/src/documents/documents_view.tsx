/** Documents: what there is, how it was cut, and how it is found. */
import { useQuery } from "@tanstack/react-query";
import { useClient } from "../api/access";
import { shellWord } from "../models/load_fields";
import { SameByCommand } from "../ui/controls";
import { Facts, Section, ViewFrame } from "../ui/view";
import { DocumentList } from "./document_list";
import { DocumentPage } from "./document_page";
import { retrievalQuery } from "./documents";
import { SearchSection } from "./search_section";
import { UploadSection } from "./upload_section";
import { VectorStoresSection } from "./vector_stores_section";

export default function DocumentsView({ name }: { name: string | null }) {
  if (name !== null) return <DocumentPage key={name} id={name} command={command(`show ${shellWord(name)}`)} />;
  return (
    <ViewFrame title="Documents">
      <UploadSection command={command("add PATH")} />
      <DocumentList command={command("ls")} />
      <SearchSection command={command} />
      <VectorStoresSection />
      <IndexSection command={command("status")} />
    </ViewFrame>
  );
}

/** Returns the command that does something, as the same tenant: with a key the key's, else `default` for both. */
function command(what: string): string {
  return `roundhouse rag ${what}`;
}

/** What serves searches; shown to those who may ask. */
function IndexSection({ command }: { command: string }) {
  const client = useClient();
  const { data } = useQuery(retrievalQuery(client));
  if (data === undefined) return null;
  return (
    <Section title="Index">
      <Facts
        entries={[
          ["Embedding model", data.embedding_model ?? "none: searches go by words"],
          ["Rerank model", data.rerank_model ?? "none"],
          ["Language", data.language],
          ["Vectors", data.vector_store === "edge" ? "embedded" : "a Qdrant server"],
          [
            "Being built",
            data.building && `${data.building.name}: ${data.building.missing_documents} documents are missing`,
          ],
          ["Last problem", data.reindex_error],
        ]}
      />
      {data.needs_reindex && data.building === null && (
        <p className="text-sm text-warn">
          Another model is set than the index has: <code>roundhouse rag reindex</code> makes another index.
        </p>
      )}
      <SameByCommand command={command} />
    </Section>
  );
}
