/** Dry runs (docs/admin.md, "Plan and dry run"): what a load or a declaration would do, and in words. */
import type { ApiClient } from "../api/client";
import type { components } from "../api/openapi";
import type { LoadValue } from "./load_fields";

export type DryRun = Pick<components["schemas"]["DryRun"], "ok" | "problems" | "changes" | "plan">;

export interface Proposal {
  /** Fields of a definition by the model's name. */
  models?: Record<string, Record<string, unknown>>;
  loads?: Record<string, { values: Record<string, LoadValue>; restart: boolean }>;
}

/** Asks what the proposal would do. Throws ApiError where the load itself would be refused. */
export function runDryRun(client: ApiClient, proposal: Proposal): Promise<DryRun> {
  return client.request<DryRun>("/v1/admin/plan", { body: proposal });
}

export interface Step {
  text: string;
  /** Whether it keeps the proposal from being carried out. */
  isObstacle: boolean;
}

const ACTIONS: Record<string, (model: string, replica: string) => string> = {
  preflight: (model) => `Check whether ${model} can start`,
  pull: (model) => `Pull the image of ${model}`,
  start: (_, replica) => `Start ${replica}`,
  drain: (_, replica) => `Let ${replica} finish its requests`,
  undrain: (_, replica) => `Let ${replica} take requests again`,
  stop: (_, replica) => `Stop ${replica}`,
  remove: (_, replica) => `Remove ${replica}`,
};

/** Returns the names of the models that a proposal is about. */
export function modelsOf({ models = {}, loads = {} }: Proposal): string[] {
  return [...Object.keys(models), ...Object.keys(loads)];
}

/**
 * Returns the first steps of a dry run, one sentence each, and what stands in the way of `models`. Other models' steps are
 * told, too, since one may have to make room. Never empty.
 */
export function stepsOf({ ok, problems, changes, plan }: DryRun, models: readonly string[]): Step[] {
  if (!ok) return problems.map(({ field, message }) => obstacle(field == null ? message : `${field} ${message}`));
  const steps = (plan?.actions ?? []).map(({ kind, model, replica, reason }) => {
    const subject = model ?? "the controller";
    const said = ACTIONS[kind]?.(subject, replica ?? subject) ?? `${kind} ${replica ?? subject}`;
    return { text: `${said}: ${reason}`, isObstacle: false };
  });
  for (const { restarts } of changes)
    if (restarts.length > 0)
      steps.push({ text: `Then replace ${restarts.join(", ")}, one at a time`, isObstacle: false });
  const own = (plan?.blocked ?? []).filter(({ model }) => models.includes(model));
  const blocked = own.map(({ model, reason }) => obstacle(`${model} cannot start: ${reason}`));
  if (plan?.paused) blocked.push(obstacle("The controller is paused: it does none of this until it goes on"));
  const all = [...steps, ...blocked];
  return all.length > 0 ? all : [{ text: "Nothing would change", isObstacle: false }];
}

function obstacle(text: string): Step {
  return { text, isObstacle: true };
}
