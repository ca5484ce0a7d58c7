/** Models' states in words. Pure. */

import { durationText, mibText, percentText } from "../ui/figures";
import type { AdminModel, EstimateSource } from "./admin_models";

const SOURCES: Record<EstimateSource, string> = {
  declared: "declared",
  observed_load_delta: "measured",
  predicted: "predicted",
  model_artifact_size: "size of the files",
  unavailable: "",
};

/** Returns why the model is as it is, one sentence each, the most telling first. `now`: Unix time in seconds. */
export function reasonsOf(model: AdminModel, now: number): string[] {
  const reasons = model.last_error === null ? [] : [firstWords(model.last_error)];
  if (model.retry_at !== null) reasons.push(retryText(model.retry_at, now));
  reasons.push(...[...model.blocked, ...model.drift].filter((reason) => !reasons.includes(reason)));
  if (model.vram_warning !== null) reasons.push(model.vram_warning);
  if (model.held_by.length > 0) reasons.push(`It waits for ${model.held_by.length} running requests to finish.`);
  return reasons;
}

/** Returns the plain words of an error: its first line, without the announcement of the engine's log that follows there. */
export function firstWords(error: string): string {
  return (error.split("\n", 1)[0] ?? "").replace(/ Last log lines:$/, "");
}

/** Returns when the next attempt is. */
export function retryText(at: number, now: number): string {
  return at <= now ? "It is tried again now." : `It is tried again in ${durationText(at - now)}.`;
}

/** Returns the state, with the share of a load that is under way: `loading 42 %`. */
export function stateText(model: Pick<AdminModel, "runtime_state" | "load_progress">): string {
  return model.runtime_state === "loading" && model.load_progress !== null
    ? `loading ${percentText(model.load_progress)}`
    : model.runtime_state;
}

/** How far a load is: its phase in words, the seconds that its newest engine has taken, and its share, 0 to 1. */
export interface LoadStage {
  phase: string;
  seconds: number | null;
  share: number | null;
}

/** Returns how far the load of a model is; null: it is not loading. `now`: Unix time in seconds. */
export function loadStage(model: AdminModel, now: number): LoadStage | null {
  if (model.runtime_state !== "loading") return null;
  const starts = model.replica_details.filter(({ phase }) => phase === "starting").map((each) => each.started_at);
  const share = model.load_progress;
  if (starts.length === 0) return { phase: share === null ? "Before its start" : "Downloading", seconds: null, share };
  const began = starts.filter((at) => at !== null);
  const seconds = began.length === 0 ? null : Math.max(0, now - Math.max(...began));
  return { phase: share === 1 ? "Until its first token" : "Reading the model", seconds, share };
}

/** Returns the figures of a load: `42 %, 12 s`. */
export function stageText({ seconds, share }: LoadStage): string {
  return [share === null ? "" : percentText(share), seconds === null ? "" : durationText(seconds)]
    .filter(Boolean)
    .join(", ");
}

/** Returns the memory of a model, with where the figure is from: `96.0 MiB, predicted`. */
export function memoryText(model: Pick<AdminModel, "vram_estimate_mib" | "vram_estimate_source">): string {
  if (model.vram_estimate_mib === null) return "not known";
  return [mibText(model.vram_estimate_mib), SOURCES[model.vram_estimate_source]].filter(Boolean).join(", ");
}

/** Returns a count of requests; null: not known, because a gateway is lost. */
export function requestCount(count: number | null): string {
  return count === null ? "not known" : String(count);
}
