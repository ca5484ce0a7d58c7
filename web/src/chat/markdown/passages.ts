/** The text of a cited passage, read where the answer's own search does not have it. */
import type { ApiClient } from "../../api/client";
import { ApiError } from "../../api/errors";
import type { Source } from "./citations";

/** Returns the passage, of a document or of a file in a vector store; null: neither has it. */
export async function readPassage(client: ApiClient, source: Source): Promise<string | null> {
  return (await readChunk(client, source)) ?? (await readPart(client, source));
}

async function readChunk(client: ApiClient, { documentId, chunk }: Source): Promise<string | null> {
  if (chunk === null) return null;
  const path = `/v1/documents/${encodeURIComponent(documentId)}/chunks`;
  const query = { limit: 1, after: chunk === 0 ? null : chunk - 1 };
  const page = await unlessMissing(client.request<{ data: { text: string }[] }>(path, { query }));
  return page?.data[0]?.text ?? null;
}

/** Files of vector stores are no documents. A citation does not name its store, so that each one is asked. */
async function readPart(client: ApiClient, { documentId, bytes }: Source): Promise<string | null> {
  if (bytes === null) return null;
  for (const { id } of await client.list<{ id: string }>("/v1/vector_stores", { limit: 100 })) {
    const path = `/v1/vector_stores/${encodeURIComponent(id)}/files/${encodeURIComponent(documentId)}/content`;
    const content = await unlessMissing(client.request<{ data: { text: string }[] }>(path));
    const text = content?.data.map((part) => part.text).join("");
    if (text) return new TextDecoder().decode(new TextEncoder().encode(text).slice(bytes.start, bytes.end));
  }
  return null;
}

/** Returns null for what the gateway does not have. */
async function unlessMissing<T>(reading: Promise<T>): Promise<T | null> {
  try {
    return await reading;
  } catch (error) {
    if (error instanceof ApiError && error.fields.status === 404) return null;
    throw error;
  }
}
