/** Every declared model with its state, why it is so, and what it serves now. */
import { useQuery } from "@tanstack/react-query";
import { useClient } from "../api/access";
import { routeHash } from "../router";
import { percentText } from "../ui/figures";
import type { AdminModel } from "./admin_models";
import { ModelActions } from "./model_actions";
import { memoryText, reasonsOf, requestCount, stateText } from "./model_words";
import { StateMark } from "./state_mark";
import { tokenRatesQuery } from "./token_rates";

export function ModelTable({ models }: { models: readonly AdminModel[] }) {
  const client = useClient();
  const rates = useQuery(tokenRatesQuery(client)).data?.rates ?? null;
  if (models.length === 0) return <p className="text-sm text-faint">No model is declared.</p>;
  return (
    <ul aria-label="Models" className="flex flex-col gap-2">
      {models.map((model) => (
        <ModelRow key={model.name} model={model} rate={rates === null ? null : (rates[model.name] ?? 0)} />
      ))}
    </ul>
  );
}

/** `rate`: generated tokens per second; null: not known yet. */
function ModelRow({ model, rate }: { model: AdminModel; rate: number | null }) {
  const reasons = reasonsOf(model, Date.now() / 1000);
  return (
    <li aria-label={model.name} className="rounded-lg border border-line bg-panel p-3">
      <div className="flex flex-wrap items-start justify-between gap-2">
        <div className="min-w-0">
          <h3 className="flex flex-wrap items-center gap-x-3 font-medium">
            <a href={routeHash("models", model.name)} className="break-all underline underline-offset-2">
              {model.name}
            </a>
            <StateMark state={model.runtime_state} text={stateText(model)} />
          </h3>
          <p className="text-sm text-faint">
            {model.resolved_backend}; {model.statement.reason}
          </p>
        </div>
        <ModelActions model={model} />
      </div>
      <Figures model={model} rate={rate} />
      {reasons.length > 0 && (
        <ul aria-label={`Why ${model.name} is ${model.runtime_state}`} className="mt-2 text-sm text-warn">
          {reasons.map((reason) => (
            <li key={reason} className="break-words">
              {reason}
            </li>
          ))}
        </ul>
      )}
    </li>
  );
}

function Figures({ model, rate }: { model: AdminModel; rate: number | null }) {
  const figures: [string, string][] = [
    ["replicas", `${model.loaded_replicas} of ${model.replicas}`],
    ["running", requestCount(model.inflight_requests)],
    ["waiting", requestCount(model.queue_depth)],
    ["tokens/s", rate === null ? "–" : rate.toFixed(1)],
    ["memory", memoryText(model)],
  ];
  if (model.prefill_progress !== null)
    figures.push(["prompts read", `${model.prefill_requests}: ${percentText(model.prefill_progress)}`]);
  return (
    <dl className="mt-2 flex flex-wrap gap-x-6 gap-y-1 text-sm">
      {figures.map(([name, value]) => (
        <div key={name} className="flex gap-1.5">
          <dt className="text-faint">{name}</dt>
          <dd className="tabular-nums">{value}</dd>
        </div>
      ))}
    </dl>
  );
}
