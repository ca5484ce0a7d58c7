/** Which models a long list shows, and in which order. Pure. */
import type { AdminModel } from "./admin_models";
import type { ModelState } from "./models";

/** More models than this are a table, with sorting and a filter. */
export const MOST_LISTED = 12;

export type SortKey = "name" | "state" | "memory" | "tokens" | "waiting";

export interface Sorting {
  key: SortKey;
  isDescending: boolean;
}

export const STATES: readonly ModelState[] = ["loaded", "loading", "unloading", "failed", "sleeping", "unloaded"];

/** Returns the models whose name, other names or backend hold `text`, in the state `state` (empty: in any). */
export function filterModels(models: readonly AdminModel[], text: string, state: ModelState | ""): AdminModel[] {
  const words = text.trim().toLowerCase();
  return models.filter(
    (model) =>
      (state === "" || model.runtime_state === state) &&
      [model.name, ...model.aliases, model.resolved_backend].some((each) => each.toLowerCase().includes(words)),
  );
}

/** Returns the models in order; what is not known comes last, and equals are by name. `rates`: tokens per second. */
export function sortModels(
  models: readonly AdminModel[],
  { key, isDescending }: Sorting,
  rates: Readonly<Record<string, number>> | null,
): AdminModel[] {
  const figure = (model: AdminModel): number | null => {
    switch (key) {
      case "name":
        return 0;
      case "state":
        return STATES.indexOf(model.runtime_state);
      case "memory":
        return model.vram_estimate_mib;
      case "tokens":
        return rates === null ? null : (rates[model.name] ?? 0);
      case "waiting":
        return model.queue_depth;
    }
  };
  const direction = isDescending ? -1 : 1;
  return models
    .map((model) => ({ model, value: figure(model) }))
    .sort((one, other) => {
      const byName = one.model.name.localeCompare(other.model.name, undefined, { numeric: true });
      if (one.value === other.value) return key === "name" ? direction * byName : byName;
      if (one.value === null || other.value === null) return one.value === null ? 1 : -1;
      return direction * (one.value - other.value);
    })
    .map(({ model }) => model);
}

/** Returns the sorting after its column's heading was pressed: the other way round, or by that column, figures largest first. */
export function nextSorting(sorting: Sorting, key: SortKey): Sorting {
  if (sorting.key === key) return { key, isDescending: !sorting.isDescending };
  return { key, isDescending: key !== "name" && key !== "state" };
}
