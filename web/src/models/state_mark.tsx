/** A model's state: a mark, whose colour only repeats the word. */
import type { ModelState } from "./models";

const COLOURS: Record<ModelState, string> = {
  loaded: "text-good",
  loading: "text-warn",
  unloading: "text-warn",
  failed: "text-bad",
  unloaded: "text-faint",
  sleeping: "text-faint",
};

export function StateMark({ state, text }: { state: ModelState; text?: string }) {
  return (
    <span className={`inline-flex items-center gap-1.5 whitespace-nowrap ${COLOURS[state]}`}>
      <span aria-hidden="true">{state === "unloaded" || state === "sleeping" ? "○" : "●"}</span>
      <span>{text ?? state}</span>
    </span>
  );
}
