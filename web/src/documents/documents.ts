/** Documents, searches and vector stores of the caller's tenant (docs/retrieval.md). */
import { queryOptions } from "@tanstack/react-query";
import type { ApiClient } from "../api/client";
import { ApiError } from "../api/errors";
import type { Attributes } from "./attributes";

export const STATUSES = ["queued", "parsing", "embedding", "ready", "failed"] as const;
export type DocumentStatus = (typeof STATUSES)[number];

export interface Document {
  id: string;
  status: DocumentStatus;
  /** Whether some version is found by searches, perhaps an older one. */
  searchable: boolean;
  filename: string | null;
  media_type: string | null;
  bytes: number;
  chunks: number | null;
  created_at: number;
  updated_at: number;
  metadata: Record<string, unknown>;
  chunking: { max_tokens: number; overlap_tokens: number };
  progress: { chunks: number; chunks_total: number | null } | null;
  error: { code: string; message: string; retry_at: number | null } | null;
  /** What searches do not find of it, though it is searchable. */
  notice: string | null;
}

export interface Chunk {
  index: number;
  /** Offsets of bytes in the document's text (UTF-8). */
  start: number;
  end: number;
  text: string;
  headings: string[];
  page: number | null;
}

export type SearchMode = "sparse" | "dense" | "hybrid";

export interface SearchHit {
  document_id: string;
  filename: string | null;
  chunk: number;
  page: number | null;
  headings: string[];
  text: string;
  score: number;
  scores: HitScores;
}

export interface HitScores {
  dense: number | null;
  dense_rank: number | null;
  sparse: number | null;
  sparse_rank: number | null;
  rerank: number | null;
}

export interface SearchResult {
  mode: SearchMode;
  embedding_model: string | null;
  rerank_model: string | null;
  complete: boolean;
  notice: string | null;
  data: SearchHit[];
}

export interface SearchRequest {
  query: string;
  top_k: number;
  mode?: SearchMode;
  rerank?: boolean;
  filter?: Attributes;
}

export interface RetrievalStatus {
  vector_store: string;
  embedding_model: string | null;
  language: string;
  rerank_model: string | null;
  building: { name: string; missing_documents: number } | null;
  needs_reindex: boolean;
  reindex_error: string | null;
}

const DOCUMENTS = "/v1/documents";
const PAGE = 100;

export const documentKeys = {
  all: ["documents"] as const,
  one: (id: string) => ["documents", "one", id] as const,
};

export interface DocumentFilter {
  status: DocumentStatus | "";
  attributes: Attributes;
  /** Most documents to list. */
  most: number;
}

/** The newest documents that fit. Asked for again each second while one of them is being indexed. */
export function documentsQuery(client: ApiClient, { status, attributes, most }: DocumentFilter) {
  const filter = Object.keys(attributes).length === 0 ? null : JSON.stringify(attributes);
  return queryOptions({
    queryKey: [...documentKeys.all, "list", status, filter, most],
    queryFn: () => client.list<Document>(DOCUMENTS, { limit: PAGE, status: status || null, filter }, most),
    refetchInterval: ({ state }) =>
      state.error instanceof ApiError ? 5000 : state.data?.some(isUnderWay) ? 1000 : 10_000,
  });
}

export function documentQuery(client: ApiClient, id: string) {
  return queryOptions({
    queryKey: documentKeys.one(id),
    queryFn: () => client.request<Document>(documentPath(id)),
    refetchInterval: ({ state }) => (state.data !== undefined && isUnderWay(state.data) ? 1000 : false),
  });
}

/** A page of the chunks of a document's searchable version. `after`: null for the first page, else an index. */
export function readChunks(client: ApiClient, id: string, after: number | null) {
  return client.request<{ data: Chunk[]; has_more: boolean }>(`${documentPath(id)}/chunks`, {
    query: { limit: PAGE, after },
  });
}

/** The state of retrieval. Scope `admin`. */
export function retrievalQuery(client: ApiClient) {
  return queryOptions({
    queryKey: ["retrieval"],
    queryFn: () => client.request<RetrievalStatus>("/v1/retrieval"),
  });
}

/** Sends a file. It is searchable when its status is `ready`. */
export function addDocument(client: ApiClient, file: File, attributes: Attributes) {
  const form = new FormData();
  form.set("file", file, file.name);
  if (Object.keys(attributes).length > 0) form.set("metadata", JSON.stringify(attributes));
  return client.request<Document>(DOCUMENTS, { body: form });
}

export function deleteDocument(client: ApiClient, id: string) {
  return client.request<unknown>(documentPath(id), { method: "DELETE" });
}

/** The bytes that were sent. */
export async function readOriginal(client: ApiClient, id: string): Promise<Blob> {
  return (await client.fetch(`${documentPath(id)}/content`)).blob();
}

export function searchDocuments(client: ApiClient, request: SearchRequest) {
  return client.request<SearchResult>("/v1/search", { body: request });
}

/** Returns whether a document is on its way into the index. */
export function isUnderWay(document: Pick<Document, "status">): boolean {
  return document.status !== "ready" && document.status !== "failed";
}

function documentPath(id: string): string {
  return `${DOCUMENTS}/${encodeURIComponent(id)}`;
}
