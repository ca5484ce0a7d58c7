/** Documents: what there is, how it was cut, and how it is found. */
import { useQuery } from "@tanstack/react-query";
import { useAccess, useClient } from "../api/access";
import { shellWord } from "../models/load_fields";
import { SameByCommand } from "../ui/controls";
import { Facts, Section, ViewFrame } from "../ui/view";
import { DocumentList } from "./document_list";
import { DocumentPage } from "./document_page";
import { retrievalQuery, tenantQuery } from "./documents";
import { SearchSection } from "./search_section";
import { UploadSection } from "./upload_section";
import { VectorStoresSection } from "./vector_stores_section";

export default function DocumentsView({ name }: { name: string | null }) {
  const command = useRagCommand();
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

/** Returns the command that does something as the same tenant. */
export function useRagCommand(): (what: string) => string {
  const client = useClient();
  const { hasKey } = useAccess();
  const tenant = useQuery(tenantQuery(client)).data ?? null;
  // With a key the tenant is the key's: no option changes it.
  return (what) => `roundhouse rag ${what}${hasKey || tenant === null ? "" : ` --tenant ${shellWord(tenant)}`}`;
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
      {data.needs_reindex && (
        <p className="text-sm text-warn">
          Another model or language is set than the index has: <code>roundhouse rag reindex</code> makes another index.
        </p>
      )}
      <SameByCommand command={command} />
    </Section>
  );
}
