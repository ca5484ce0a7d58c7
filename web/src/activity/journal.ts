/** The controller's journal: what happened, live and in the past (docs/admin.md, "Events" and "History"). Scope `admin`. */
import type { ApiClient } from "../api/client";

export const KINDS = [
  "state",
  "action",
  "failure",
  "statement",
  "file",
  "problem",
  "overdue",
  "drift",
  "controller",
  "gateway",
  "host",
  "download",
  "tool",
] as const;
export type Kind = (typeof KINDS)[number];

export interface Entry {
  /** Unix milliseconds; grows over restarts. */
  id: number;
  /** Unix time in seconds. */
  at: number;
  kind: Kind;
  model: string | null;
  actor: string;
  message: string;
  details: Record<string, unknown>;
}

export interface JournalFilter {
  model: string;
  /** Empty: every kind. */
  kind: Kind | "";
}

/** Most entries that the page keeps: a stream has no end. */
export const MOST_ENTRIES = 2000;

/** Returns a page of history, the newest first. `before`: of the page before; null: the newest. Every kind is listed. */
export function readHistory(client: ApiClient, { model, kind }: JournalFilter, before: number | null) {
  // The client writes each name once, and `kind` is repeated: so it is written into the path.
  const kinds = (kind === "" ? KINDS : [kind]).map((each) => `kind=${each}`).join("&");
  const rest = new URLSearchParams({ limit: "100" });
  if (model !== "") rest.set("model", model);
  if (before !== null) rest.set("before", String(before));
  return client.request<{ entries: Entry[]; next_before: number | null }>(`/v1/admin/history?${kinds}&${rest}`);
}

/** Returns both lists as one, the newest first, each entry once, at most `MOST_ENTRIES`. */
export function mergeEntries(newer: readonly Entry[], older: readonly Entry[]): Entry[] {
  const known = new Map([...older, ...newer].map((entry) => [entry.id, entry]));
  return [...known.values()].sort((one, other) => other.id - one.id).slice(0, MOST_ENTRIES);
}

/** Returns the newest id; null: there is no entry. */
export function newestId(entries: readonly Entry[]): number | null {
  return entries[0]?.id ?? null;
}

/** Returns the details that the message does not say, as a text of JSON; empty: there are none. */
export function detailsText(entry: Entry): string {
  const shown = Object.entries(entry.details).filter(([, value]) => value !== null && value !== undefined);
  return shown.length === 0 ? "" : JSON.stringify(Object.fromEntries(shown), null, 2);
}
