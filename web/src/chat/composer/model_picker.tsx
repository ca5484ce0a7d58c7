/** The chosen model, and the list to choose another from: by state, with what each can take, or why it failed. */
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { type KeyboardEvent, useEffect, useId, useRef, useState } from "react";
import { useClient } from "../../api/access";
import { describeError } from "../../api/client";
import { firstWords } from "../../models/model_words";
import { type ListedModel, modelListQuery } from "../../models/models";
import { Button, ErrorNote, showCode } from "../../ui/controls";
import { Icon } from "../../ui/icons";
import { isOfInputMethod } from "../../ui/keys";

/** Models beyond this number have a search. */
const MOST_WITHOUT_SEARCH = 8;

/** Headings of the list, in its order, each with the states below it. */
const GROUPS: readonly { title: string; states: readonly ListedModel["state"][] }[] = [
  { title: "Loaded", states: ["loaded"] },
  { title: "Loading", states: ["loading"] },
  { title: "Not loaded", states: ["unloaded", "sleeping", "unloading"] },
  { title: "Failed", states: ["failed"] },
];

/** Returns the models whose name or alias has the words of `search`, by state; groups without any are left out. */
export function groupByState(models: readonly ListedModel[], search: string) {
  const words = search.toLowerCase().split(/\s+/).filter(Boolean);
  const found = models.filter(({ id, aliases }) => {
    const names = [id, ...aliases].join(" ").toLowerCase();
    return words.every((word) => names.includes(word));
  });
  const groups = GROUPS.map(({ title, states }) => ({
    title,
    models: found.filter(({ state }) => states.includes(state)),
  }));
  return groups.filter(({ models: some }) => some.length > 0);
}

/**
 * Returns the name of the model that a conversation begins with: the one used last, else the default one, else the first
 * loaded, else the first of the list; empty without any. `last`: its name or an alias; it may be declared no more.
 */
export function firstModel(models: readonly ListedModel[], last: string | undefined, byDefault: string | null): string {
  const find = (name: string | null | undefined) =>
    name && models.find(({ id, aliases }) => id === name || aliases.includes(name))?.id;
  return find(last) || find(byDefault) || (groupByState(models, "")[0]?.models[0]?.id ?? "");
}

interface ModelPickerProps {
  models: readonly ListedModel[];
  /** Name of the chosen model, which may be declared no more; empty: none is. */
  chosen: string;
  isDisabled: boolean;
  onChoose: (model: string) => void;
}

export function ModelPicker({ models, chosen, isDisabled, onChoose }: ModelPickerProps) {
  const id = useId();
  const list = useRef<HTMLDivElement>(null);
  const searchField = useRef<HTMLInputElement>(null);
  const [search, setSearch] = useState("");
  const groups = groupByState(models, search);
  const model = models.find((each) => each.id === chosen);
  const shown = chosen === "" ? "No model" : chosen;

  function choose(name: string) {
    onChoose(name);
    list.current?.hidePopover();
  }

  function onSearchKey(event: KeyboardEvent) {
    // The field is in the message's form.
    if (event.key !== "Enter" || isOfInputMethod(event.nativeEvent)) return;
    event.preventDefault();
    const first = search.trim() === "" ? undefined : groups[0]?.models[0];
    if (first !== undefined) choose(first.id);
  }

  return (
    <>
      <button
        type="button"
        popoverTarget={id}
        disabled={isDisabled}
        aria-label={`Model: ${shown}`}
        className="flex min-h-9 min-w-0 items-center gap-2 rounded-md border border-line bg-raised px-2 py-1 text-sm"
      >
        <StateDot state={model?.state ?? "failed"} />
        <span className="truncate">{shown}</span>
        <Icon name="down" />
      </button>
      <div
        ref={list}
        id={id}
        popover="auto"
        role="dialog"
        aria-label="Models"
        onToggle={({ newState }) => {
          if (newState === "open") searchField.current?.focus();
          else setSearch("");
        }}
        className="m-auto max-h-[70dvh] w-[min(28rem,94vw)] overflow-y-auto rounded-lg border border-line bg-ground p-2 text-text"
      >
        {models.length === 0 && <p className="p-2 text-sm">No model that can chat is declared.</p>}
        {models.length > MOST_WITHOUT_SEARCH && (
          <input
            ref={searchField}
            type="search"
            aria-label="Search models"
            placeholder={`Search ${models.length} models`}
            value={search}
            onChange={({ target }) => setSearch(target.value)}
            onKeyDown={onSearchKey}
            className="mb-1 w-full rounded-md border border-line bg-raised px-3 py-1.5 text-sm"
          />
        )}
        {models.length > 0 && groups.length === 0 && <p className="p-2 text-sm">Nothing found.</p>}
        {groups.map(({ title, models: some }) => (
          <section key={title} aria-label={title}>
            <h2 className="px-2 pt-2 pb-1 text-xs font-semibold text-faint">{title}</h2>
            {some.map((each) => (
              <button
                key={each.id}
                type="button"
                aria-pressed={each.id === chosen}
                onClick={() => choose(each.id)}
                className="flex w-full items-center gap-2 rounded-md px-2 py-2 text-left text-sm hover:bg-panel aria-pressed:bg-panel"
              >
                <StateDot state={each.state} />
                <span className="min-w-0 flex-1">
                  <span className={`block truncate ${each.state === "failed" ? "text-faint" : ""}`}>{each.id}</span>
                  <span className="block text-xs text-faint">{sayModel(each)}</span>
                  {each.state === "failed" && each.reason !== null && (
                    <span title={each.reason} className="line-clamp-4 text-xs break-words text-faint">
                      {showCode(firstWords(each.reason))}
                    </span>
                  )}
                </span>
              </button>
            ))}
          </section>
        ))}
      </div>
    </>
  );
}

/** Returns the key of the request that loads a model. */
export function loadKey(model: string): readonly string[] {
  return ["load", model];
}

interface LoadOfferProps {
  model: ListedModel;
  /**
   * Sends the message that waits; null: none does. It is called once the gateway has taken the load, for requests wait for
   * the model from then on; and only if a message waited when the load was asked for, and the model is still chosen.
   */
  onTaken: (() => void) | null;
}

/** Milliseconds between questions whether the gateway knows of a load, and their number. */
const TAKEN_MS = 250;
const TAKEN_TRIES = 40;

/** Offers to load a model that is not loaded, and then to send what waits for it. Shows nothing for one that is. */
export function LoadOffer({ model, onTaken }: LoadOfferProps) {
  const client = useClient();
  const queries = useQueryClient();
  const newest = useRef(onTaken);
  useEffect(() => {
    newest.current = onTaken;
  }, [onTaken]);
  const load = useMutation({
    mutationKey: loadKey(model.id),
    mutationFn: async () => {
      const path = `/v1/admin/models/${encodeURIComponent(model.id)}/load`;
      await client.request(path, { body: {}, query: { wait: false } });
      // The gateway hears of it from the controller, a moment later.
      for (let tries = 0; tries < TAKEN_TRIES; tries += 1) {
        const { data: listed } = await queries.fetchQuery({ ...modelListQuery(client), staleTime: 0 });
        const state = listed.find(({ id }) => id === model.id)?.state;
        if (state === "loading" || state === "loaded") return;
        await new Promise((resolve) => setTimeout(resolve, TAKEN_MS));
      }
    },
    onSettled: () => queries.invalidateQueries({ queryKey: ["models"] }),
  });
  // Given here, it is left out if the composer is gone by then, or has another model.
  const ask = () => load.mutate(undefined, onTaken === null ? {} : { onSuccess: () => newest.current?.() });
  if (model.state === "loaded" || model.state === "unloading") return null;
  const share = model.status.progress;
  if (model.state === "loading" || load.isPending) {
    return (
      <p role="status" className="flex items-center gap-2 text-sm text-faint">
        {model.id} is being loaded. A message waits for it.
        {typeof share === "number" && <progress className="h-2 w-32" max={1} value={share} aria-label="Load" />}
      </p>
    );
  }
  return (
    <div className="text-sm">
      <div className="flex flex-wrap items-center gap-2">
        <span>{model.state === "failed" ? `${model.id} could not be loaded.` : `${model.id} is not loaded.`}</span>
        <Button icon="play" onClick={ask}>
          {onTaken === null ? "Load it" : "Load it and send"}
        </Button>
      </div>
      {load.error && <ErrorNote {...describeError(load.error)} />}
    </div>
  );
}

function StateDot({ state }: { state: ListedModel["state"] }) {
  const colour = {
    loaded: "bg-good",
    loading: "bg-warn",
    unloading: "bg-warn",
    failed: "bg-bad",
    unloaded: "bg-line",
    sleeping: "bg-line",
  };
  return <span aria-hidden className={`size-2.5 shrink-0 rounded-full ${colour[state]}`} />;
}

function sayModel({ state, modalities, context_length: context, capabilities }: ListedModel): string {
  const marks = [state, ...modalities.filter((kind) => kind !== "text").map((kind) => `takes ${kind}`)];
  if (capabilities.tools) marks.push("tools");
  if (context !== null) marks.push(`${context.toLocaleString("en")} tokens of context`);
  return marks.join(" · ");
}
