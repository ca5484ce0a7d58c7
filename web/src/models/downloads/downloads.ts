/** Downloads of models and what lies in the models folder (docs/admin.md, "Downloads"). Scope `admin`. */
import { queryOptions } from "@tanstack/react-query";
import type { ApiClient } from "../../api/client";
import type { EstimateSource } from "../admin_models";

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
  error: { message: string; next_steps?: string[] } | null;
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

export interface ModelFile {
  path: string;
  folder: string;
  kind: "file" | "folder";
  size: number;
  origin: "download" | "hand";
  reference: string | null;
  used_by: string[];
  memory_mib: number | null;
  memory_on: "gpu" | "host" | null;
  memory_source: EstimateSource | null;
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
  return queryOptions({ queryKey: downloadKeys.files, queryFn: () => client.request<ModelFiles>(FILES) });
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
