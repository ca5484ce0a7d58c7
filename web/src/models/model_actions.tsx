/** The buttons that load, unload and reset a model, and what the gateway said against it. */
import { describeError } from "../api/client";
import { Button, ErrorNote } from "../ui/controls";
import type { AdminModel } from "./admin_models";
import { ChatLink } from "./chat_link";
import { useModelAction } from "./use_model_actions";

export function ModelActions({ model }: { model: AdminModel }) {
  const action = useModelAction(model.name);
  const isUp = model.runtime_state === "loaded" || model.runtime_state === "loading";
  const hasOverride = model.statement.kind === "load" || model.statement.kind === "unload";
  // Busy buttons stay enabled, so that the focus stays on them.
  const act = (what: Parameters<typeof action.mutate>[0]) => {
    if (!action.isPending) action.mutate(what);
  };
  return (
    <div className="flex flex-col gap-1">
      <div className="flex flex-wrap gap-2">
        <ChatLink name={model.name} />
        <Button
          icon={isUp ? "eject" : "play"}
          aria-label={`${isUp ? "Unload" : "Load"} ${model.name}`}
          aria-disabled={action.isPending || model.runtime_state === "unloading"}
          onClick={() => act(isUp ? { kind: "unload" } : { kind: "load", values: {}, restart: false })}
        >
          {isUp ? "Unload" : "Load"}
        </Button>
        {hasOverride && (
          <Button
            icon="undo"
            aria-label={`Reset ${model.name} to the files`}
            title="Take the last load or unload back: the files rule"
            aria-disabled={action.isPending}
            onClick={() => act({ kind: "reset" })}
          >
            Reset
          </Button>
        )}
      </div>
      {action.error && <ErrorNote {...describeError(action.error)} />}
    </div>
  );
}
