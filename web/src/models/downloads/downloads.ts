/** Downloads of models and what lies in the models folder (docs/admin.md, "Downloads"). Scope `admin`. */
import { queryOptions } from "@tanstack/react-query";
import type { ApiClient } from "../../api/client";
import { type EstimateSource, every, loadModel } from "../admin_models";

export interface DownloadFile {
  path: string;
  size: number;
  done_bytes: number;
}

export interface Download {
  id: string;
  reference: string;
  pinned: string | null;
  state: "queued" | "resolving" | "downloading" | "verifying" | "finished" | "failed" | "cancelled";
  files: DownloadFile[];
  main: string | null;
  projector: string | null;
  total_bytes: number;
  done_bytes: number;
  bytes_per_s: number | null;
  remaining_s: number | null;
  /** Why nothing comes just now; null: something does. */
  waiting: string | null;
  has_finished: boolean;
  error: { message: string; code?: string; next_steps?: string[] } | null;
  created_at: number;
  ended_at: number | null;
}

export interface DeviceFit {
  /** Labels of the GPUs; empty: main memory. */
  gpus: string[];
  needed_mib: number;
  free_mib: number | null;
  total_mib: number | null;
  fits: boolean;
  fits_alone: boolean;
  beside: string[];
  reason: string | null;
}

/** What a reference is, before anything is downloaded. */
export interface InspectedModel {
  name: string;
  inspection: {
    reference: string;
    pinned: string;
    files: { path: string; target: string; size: number; is_present: boolean }[];
    total_bytes: number;
    missing_bytes: number;
    free_bytes: number;
  };
  forecast: { summary: string; backend: string | null; devices: DeviceFit[]; reason: string | null };
  /** Fields of a definition that serves the model. */
  fields: Record<string, unknown>;
}

/** One model of a repository that a search found, with what follows from its size. */
export interface OfferedModel {
  /** What a download of it names. */
  reference: string;
  format: "gguf" | "safetensors";
  quantisation: string | null;
  /** Path below the models folder. */
  main: string;
  projector: string | null;
  size: number;
  forecast: { summary: string };
  is_present: boolean;
  used_by: string[];
}

export interface OfferedRepository {
  repository: string;
  downloads: number | null;
  is_gated: boolean;
  licence: string | null;
  left_out: number;
  /** Why its models are not known; null: they are. */
  reason: string | null;
  choices: OfferedModel[];
}

export interface FileMemory {
  memory_mib: number | null;
  memory_on: "gpu" | "host" | null;
  memory_source: EstimateSource | null;
}

export interface ModelFile extends FileMemory {
  path: string;
  folder: string;
  kind: "file" | "folder";
  size: number;
  origin: "download" | "hand";
  reference: string | null;
  used_by: string[];
  /** By the name of each model that uses it, where they differ. */
  memory_by_model: Record<string, FileMemory>;
  /** The name under which it can be served; null: a model uses it, or `reason`. */
  serve_as: string | null;
  /** Why it cannot be served. */
  reason: string | null;
}

/** The declaration that serves a file, made from what the file says of itself. */
export interface FileDeclaration {
  path: string;
  name: string;
  fields: Record<string, unknown>;
  context: number | null;
  trained_context: number | null;
  projector: string | null;
  reason: string | null;
  declared: "new" | "before" | null;
}

export interface ModelFiles {
  folders: string[];
  models: ModelFile[];
  total_bytes: number;
  is_complete: boolean;
}

const DOWNLOADS = "/v1/admin/downloads";
const FILES = "/v1/admin/models/files";
export const EVENTS_PATH = `${DOWNLOADS}/events`;

export const downloadKeys = {
  list: ["admin", "downloads"] as const,
  files: ["admin", "files"] as const,
};

export function downloadsQuery(client: ApiClient) {
  return queryOptions({
    queryKey: downloadKeys.list,
    queryFn: async () => (await client.request<{ downloads: Download[] }>(DOWNLOADS)).downloads,
  });
}

export function modelFilesQuery(client: ApiClient) {
  return queryOptions({
    queryKey: downloadKeys.files,
    queryFn: () => client.request<ModelFiles>(FILES),
    refetchInterval: every(5000),
  });
}

/** Searches the hub for repositories whose names have these words. */
export async function searchModels(client: ApiClient, words: string) {
  const found = await client.request<{ repositories: OfferedRepository[] }>(`${DOWNLOADS}/search`, {
    query: { words },
  });
  return found.repositories;
}

export function inspectReference(client: ApiClient, reference: string) {
  return client.request<InspectedModel>(`${DOWNLOADS}/inspect`, { body: { reference } });
}

export function startDownload(client: ApiClient, reference: string) {
  return client.request<Download>(DOWNLOADS, { body: { reference } });
}

export function cancelDownload(client: ApiClient, id: string) {
  return client.request<Download>(`${DOWNLOADS}/${encodeURIComponent(id)}`, { method: "DELETE" });
}

/** Declares a file of the models folders, and loads it. `model`: its path, with the folder's. */
export async function serveModelFile(client: ApiClient, model: string) {
  const declared = await client.request<FileDeclaration>(FILES, { body: { model } });
  // What is declared now is loaded for that; a model that was there before may wait for a request.
  if (declared.declared === "before") await loadModel(client, declared.name, {}, false);
  return declared;
}

/** Removes a downloaded model by its path below the models folder, or its reference. */
export function removeModelFiles(client: ApiClient, model: string) {
  return client.request<{ removed: string[]; freed_bytes: number }>(FILES, { method: "DELETE", query: { model } });
}

/** Returns the list with a download as it is now: in its place, or first if it is new. */
export function withDownload(downloads: readonly Download[], download: Download): Download[] {
  const isKnown = downloads.some((each) => each.id === download.id);
  return isKnown
    ? downloads.map((each) => (each.id === download.id ? download : each))
    : [download, ...downloads].sort((one, other) => other.created_at - one.created_at);
}

/** Returns whether a download is under way. */
export function isRunning(download: Download): boolean {
  return !["finished", "failed", "cancelled"].includes(download.state);
}
