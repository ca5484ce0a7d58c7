/** Vector stores of OpenAI's API: spaces of documents of their own, which answers can be grounded on. */
import { queryOptions } from "@tanstack/react-query";
import type { ApiClient } from "../api/client";

export interface VectorStore {
  id: string;
  name: string | null;
  created_at: number;
  usage_bytes: number;
  file_counts: { in_progress: number; completed: number; failed: number; cancelled: number; total: number };
  status: "expired" | "in_progress" | "completed";
  expires_at: number | null;
}

export interface StoreFile {
  id: string;
  status: "in_progress" | "completed" | "failed" | "cancelled";
  usage_bytes: number;
  last_error: { code: string; message: string } | null;
}

const STORES = "/v1/vector_stores";
export const storeKeys = { all: ["vector-stores"] as const };

export function vectorStoresQuery(client: ApiClient) {
  return queryOptions({
    queryKey: [...storeKeys.all, "list"],
    queryFn: () => client.list<VectorStore>(STORES, { limit: 100 }),
    refetchInterval: ({ state }) => (state.data?.some((store) => store.status === "in_progress") ? 1000 : false),
  });
}

/** The files of a store, with their names. */
export function storeFilesQuery(client: ApiClient, store: VectorStore) {
  return queryOptions({
    queryKey: [...storeKeys.all, "files", store.id, store.file_counts],
    queryFn: async () => {
      const files = await client.list<StoreFile>(`${STORES}/${store.id}/files`, { limit: 100 });
      return Promise.all(files.map(async (file) => ({ ...file, name: await readFilename(client, file.id) })));
    },
  });
}

export function createStore(client: ApiClient, name: string) {
  return client.request<VectorStore>(STORES, { body: { name } });
}

/** Deletes a store. Its files stay, as at OpenAI. */
export function deleteStore(client: ApiClient, id: string) {
  return client.request<unknown>(`${STORES}/${id}`, { method: "DELETE" });
}

/** Takes a file out of a store, and deletes it. */
export async function deleteStoreFile(client: ApiClient, store: string, file: string): Promise<void> {
  await client.request<unknown>(`${STORES}/${store}/files/${file}`, { method: "DELETE" });
  await client.request<unknown>(`/v1/files/${file}`, { method: "DELETE" });
}

/** Uploads a file and adds it to a store. */
export async function addStoreFile(client: ApiClient, store: string, file: File): Promise<void> {
  const form = new FormData();
  form.set("purpose", "assistants");
  form.set("file", file, file.name);
  const stored = await client.request<{ id: string }>("/v1/files", { body: form });
  await client.request<unknown>(`${STORES}/${store}/files`, { body: { file_id: stored.id } });
}

async function readFilename(client: ApiClient, id: string): Promise<string> {
  return (await client.request<{ filename: string }>(`/v1/files/${id}`)).filename;
}
