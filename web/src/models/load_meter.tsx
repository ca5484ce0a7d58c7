/** How far the load of a model is: a bar, its phase and its seconds. */
import { Meter } from "../ui/controls";
import type { AdminModel } from "./admin_models";
import { loadStage, stageText } from "./model_words";

/** Shows nothing while the model is not loading. `now`: Unix time in seconds. */
export function LoadMeter({ model, now }: { model: AdminModel; now: number }) {
  const stage = loadStage(model, now);
  if (stage === null) return null;
  return (
    <div className="mt-1">
      <Meter label={stage.phase} share={stage.share} text={stageText(stage)} />
    </div>
  );
}
