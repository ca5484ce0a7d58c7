/** Models as the admin API shows them (docs/admin.md, "Rows"), and what changes them. Scope `admin`. */
import { queryOptions } from "@tanstack/react-query";
import type { ApiClient } from "../api/client";
import { ApiError } from "../api/errors";
import type { LoadConstraint, LoadValue, PairPresets } from "./load_fields";
import type { ModelState } from "./models";

export interface ReplicaDetails {
  name: string;
  index: number;
  attempt: number;
  phase: string;
  outdated: boolean;
  endpoint: string | null;
  inflight: number | null;
  started_at: number | null;
  /** UUID of a GPU, or `host` for main memory, to MiB: as at the start, or the measured use if that is more. */
  claims: Record<string, number>;
  /** The same as at the start: declared, predicted, or measured at an earlier load. */
  start_claims: Record<string, number>;
  /** Name of its host; absent: there is one host. */
  host?: string;
}

export interface AdminModel {
  name: string;
  resolved_backend: string;
  configured_enabled: boolean;
  runtime_state: ModelState;
  is_loaded: boolean;
  replicas: number;
  replica_max: number;
  loaded_replicas: number;
  inflight_requests: number | null;
  queue_depth: number | null;
  configured_target_inflight: number;
  effective_target_inflight: number;
  last_error: string | null;
  exit_code: number | null;
  vram_estimate_mib: number | null;
  vram_estimate_replica_count: number;
  vram_estimate_source: EstimateSource;
  vram_observed_mib: number | null;
  vram_warning: string | null;
  drift: string[];
  load_constraints: Record<string, LoadConstraint>;
  load_recommendations: Record<string, PairPresets>;
  load_override: Record<string, LoadValue>;
  capabilities: { modalities: string[]; tools: boolean; thinking_modes: string[]; structured_output: boolean };
  definition: Record<string, unknown>;
  aliases: string[];
  declared_by: "files" | "runtime" | "discovery";
  statement: { kind: "file" | "autoload" | "load" | "unload"; since: number; reason: string };
  retry_at: number | null;
  load_progress: number | null;
  prefill_requests: number;
  prefill_progress: number | null;
  blocked: string[];
  held_by: { request_id: string; replica: string; gateway: string; since: number }[];
  replica_details: ReplicaDetails[];
}

export type EstimateSource = "observed_load_delta" | "predicted" | "model_artifact_size" | "unavailable" | "declared";

export interface AdminModels {
  models: AdminModel[];
  last_event_id: number;
  observed_at: number;
  observation_error: string | null;
  desired_problems: { file: string; line: number | null; field: string | null; message: string }[];
  paused: boolean;
}

export interface Gpu {
  index: number;
  name: string;
  used_mib: number;
  total_mib: number;
  uuid: string;
  claimed_mib: number;
  utilization_percent: number | null;
  processes: { pid: number; name: string | null; used_mib: number | null; replica: string | null }[] | null;
  mig: number | null;
  is_unified: boolean;
  /** Name of its host; absent: there is one host. */
  host?: string;
}

/** A host of an installation with several. Memory is in MiB. */
export interface Host {
  name: string;
  /** `ready`, `draining`, `silent`, `lost` or `refused`. */
  state: string;
  reason: string | null;
  /** Unix time in seconds; null: it is the controller's own. */
  last_heard: number | null;
  memory_mib: number | null;
  claimed_mib: number;
  engines: string[];
}

export interface GpuMemory {
  gpus: Gpu[];
  unread_gpus: { description: string }[];
  /** Main memory that engines may take together; null: not bounded, or an older controller. */
  host_mib?: number | null;
  /** Why no figures of GPUs are available; null: they are. */
  error: string | null;
  driver_version: string | null;
  cuda_version: string | null;
  /** Absent: there is one host. */
  hosts?: Host[];
  is_cut_off?: boolean;
}

export interface Plan {
  actions: { kind: string; model: string; replica: string | null; reason: string }[];
  blocked: { model: string; index: number | null; reason: string }[];
  paused: boolean;
}

const ADMIN = "/v1/admin";
const LIVE_MS = 2000;

/** Returns whether the gateway refuses the admin API to this user: the key lacks the scope, or keys are needed. */
export function isForbidden(error: unknown): boolean {
  return error instanceof ApiError && (error.fields.status === 401 || error.fields.status === 403);
}

/** Returns how often a query is asked again: every `ms`, and never once this user may not. */
export function every(ms: number) {
  return ({ state }: { state: { error: Error | null } }) => (isForbidden(state.error) ? false : ms);
}

export const adminKeys = {
  models: ["admin", "models"] as const,
  gpus: ["admin", "gpu-memory"] as const,
  plan: ["admin", "plan"] as const,
};

export function adminModelsQuery(client: ApiClient) {
  return queryOptions({
    queryKey: adminKeys.models,
    queryFn: () => client.request<AdminModels>(`${ADMIN}/models`),
    refetchInterval: every(LIVE_MS),
  });
}

export function gpuMemoryQuery(client: ApiClient) {
  return queryOptions({
    queryKey: adminKeys.gpus,
    queryFn: () => client.request<GpuMemory>(`${ADMIN}/gpu-memory`),
    refetchInterval: every(LIVE_MS),
  });
}

/** What the controller would do now: mostly nothing, since it acts at once unless it is paused. */
export function planQuery(client: ApiClient) {
  return queryOptions({
    queryKey: adminKeys.plan,
    queryFn: () => client.request<Plan>(`${ADMIN}/plan`),
    refetchInterval: every(5000),
  });
}

/** Command lines of the models' newest engines, by model, secrets masked. */
export function commandsQuery(client: ApiClient) {
  return queryOptions({
    queryKey: ["admin", "commands"],
    queryFn: async () => (await client.request<{ models: Record<string, string[]> }>(`${ADMIN}/commands`)).models,
    refetchInterval: every(5000),
  });
}

/** The last lines of the model's engines, as text. */
export function logsQuery(client: ApiClient, model: string, lines: number) {
  return queryOptions({
    queryKey: ["admin", "logs", model, lines],
    queryFn: async () => (await client.fetch(`${modelPath(model)}/logs`, { query: { lines } })).text(),
    refetchInterval: every(3000),
  });
}

/** Begins a load and answers the row at once. `values` is empty for a plain load. */
export function loadModel(client: ApiClient, model: string, values: Record<string, LoadValue>, restart: boolean) {
  return client.request<AdminModel>(`${modelPath(model)}/load`, {
    body: values,
    query: { wait: false, restart: restart || null },
  });
}

/** Begins an unload and answers the row at once. Running requests finish. */
export function unloadModel(client: ApiClient, model: string) {
  return client.request<AdminModel>(`${modelPath(model)}/unload`, { body: {}, query: { wait: false } });
}

/** Takes the last load or unload back: the files rule again. */
export function resetModel(client: ApiClient, model: string) {
  return client.request<AdminModel>(`${modelPath(model)}/override`, { method: "DELETE" });
}

/** Drains a host, or takes that back, and answers it. */
export function changeHost(client: ApiClient, host: string, verb: "drain" | "undrain") {
  return client.request<Host>(`${ADMIN}/hosts/${encodeURIComponent(host)}/${verb}`, { method: "POST" });
}

/** Declares a model without a file. `fields` are those of a definition. */
export function declareModel(client: ApiClient, model: string, fields: Record<string, unknown>) {
  return client.request<unknown>(declarationPath(model), { method: "PUT", body: fields });
}

/** Takes the declaration of a model back that is in no file: its engines end when running requests have finished. */
export function undeclareModel(client: ApiClient, model: string) {
  return client.request<unknown>(declarationPath(model), { method: "DELETE" });
}

// A name may hold `/`, which stays one in the path.
function modelPath(model: string): string {
  return `${ADMIN}/models/${model.split("/").map(encodeURIComponent).join("/")}`;
}

function declarationPath(model: string): string {
  return `${ADMIN}/declarations/models/${model.split("/").map(encodeURIComponent).join("/")}`;
}
