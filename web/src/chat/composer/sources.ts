/** What a conversation may use beside its model: servers of tools, and collections of documents (vector stores). */
import { queryOptions } from "@tanstack/react-query";
import type { ApiClient } from "../../api/client";
import type { ConversationSettings } from "../conversations";
import type { ListedServer } from "./server_offers/offers";

/** The label that stands for the built-in tools in requests. */
export const BUILT_IN = "roundhouse";

export interface ListedTool {
  tool: string;
  display_name: string;
  type: "builtin" | "mcp";
  permissions: { write: boolean };
}

/** The collection that is all documents of the caller, beside the vector stores (docs/retrieval.md). */
export const ALL_DOCUMENTS = "documents";

export interface VectorStore {
  id: string;
  name: string | null;
  file_counts: { completed: number; total: number };
}

export interface ToolSource {
  label: string;
  title: string;
  tools: string[];
  isConnected: boolean;
}

/** Returns in words what answers use beside the model; null: nothing. */
export function sayUsed({ collections, toolServers }: ConversationSettings): string | null {
  const used = [...(collections?.length ? ["documents"] : []), ...(toolServers?.length ? ["tools"] : [])];
  return used.length === 0 ? null : `Answers use ${used.join(" and ")}`;
}

/** The servers of tools that the caller may use, the built-in tools first. */
export function toolSourcesQuery(client: ApiClient) {
  return queryOptions({
    queryKey: ["tools", "sources"],
    queryFn: async () => {
      const [tools, servers] = await Promise.all([
        client.request<ListedTool[]>("/tools"),
        client.request<ListedServer[]>("/tools/servers"),
      ]);
      return toolSources(tools, servers);
    },
  });
}

/** Returns the sources of what `/tools` and `/tools/servers` list. */
export function toolSources(tools: readonly ListedTool[], servers: readonly ListedServer[]): ToolSource[] {
  const own = tools.filter(({ type }) => type === "builtin").map(({ tool }) => tool);
  const builtIn = own.length === 0 ? [] : [{ label: BUILT_IN, title: "Built-in tools", tools: own, isConnected: true }];
  const others = servers
    .filter((each) => each.tools.length > 0)
    .map(({ server, tools: names, state }) => ({
      label: server,
      title: server,
      tools: names.map((name) => name.slice(`${server}__`.length)),
      isConnected: state === "connected",
    }));
  return [...builtIn, ...others];
}

/** The caller's collections of documents. */
export function collectionsQuery(client: ApiClient) {
  return queryOptions({
    queryKey: ["vector_stores", "list"],
    queryFn: () => client.list<VectorStore>("/v1/vector_stores", { limit: 100 }),
    retry: false,
  });
}
