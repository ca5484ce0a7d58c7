/** The chosen model, and the list to choose another from: what each can take, and whether it is loaded. */
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useId, useRef } from "react";
import { useClient } from "../../api/access";
import { describeError } from "../../api/client";
import type { ListedModel } from "../../models/models";
import { Button, ErrorNote } from "../../ui/controls";
import { Icon } from "../../ui/icons";

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
  const model = models.find((each) => each.id === chosen);
  const shown = chosen === "" ? "No model" : chosen;
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
        className="m-auto max-h-[70dvh] w-[min(28rem,94vw)] overflow-y-auto rounded-lg border border-line bg-ground p-2 text-text"
      >
        {models.length === 0 && <p className="p-2 text-sm">No model that can chat is declared.</p>}
        {models.map((each) => (
          <button
            key={each.id}
            type="button"
            aria-pressed={each.id === chosen}
            onClick={() => {
              onChoose(each.id);
              list.current?.hidePopover();
            }}
            className="flex w-full items-center gap-2 rounded-md px-2 py-2 text-left text-sm hover:bg-panel aria-pressed:bg-panel"
          >
            <StateDot state={each.state} />
            <span className="min-w-0 flex-1">
              <span className="block truncate">{each.id}</span>
              <span className="block text-xs text-faint">{sayModel(each)}</span>
            </span>
          </button>
        ))}
      </div>
    </>
  );
}

/** Returns the key of the request that loads a model. */
export function loadKey(model: string): readonly string[] {
  return ["load", model];
}

/** Offers to load a model that is not loaded. Shows nothing for one that is. */
export function LoadOffer({ model }: { model: ListedModel }) {
  const client = useClient();
  const queries = useQueryClient();
  const load = useMutation({
    mutationKey: loadKey(model.id),
    mutationFn: () => client.request(`/v1/admin/models/${encodeURIComponent(model.id)}/load`, { method: "POST" }),
    onSettled: () => queries.invalidateQueries({ queryKey: ["models"] }),
  });
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
        <Button onClick={() => load.mutate()}>Load it</Button>
      </div>
      {load.error && <ErrorNote {...describeError(load.error)} />}
    </div>
  );
}

function StateDot({ state }: { state: ListedModel["state"] }) {
  const colour = { loaded: "bg-good", loading: "bg-warn", unloading: "bg-warn", failed: "bg-bad", unloaded: "bg-line" };
  return <span aria-hidden className={`size-2.5 shrink-0 rounded-full ${colour[state]}`} />;
}

function sayModel({ state, modalities, context_length: context, capabilities }: ListedModel): string {
  const marks = [state, ...modalities.filter((kind) => kind !== "text").map((kind) => `takes ${kind}`)];
  if (capabilities.tools) marks.push("tools");
  if (context !== null) marks.push(`${context.toLocaleString("en")} tokens of context`);
  return marks.join(" · ");
}
