/** One model: its state and why, its engines, a load with values, its logs and its command line. */
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useClient } from "../api/access";
import { describeError } from "../api/client";
import { navigate, routeHash } from "../router";
import { ConfirmButton } from "../ui/confirm_button";
import { ErrorNote, SameByCommand, showCode } from "../ui/controls";
import { durationText, mibText, timeText } from "../ui/figures";
import { Facts, Section, ViewFrame } from "../ui/view";
import { type AdminModel, type AdminModels, commandsQuery, logsQuery, undeclareModel } from "./admin_models";
import { LastHourSection } from "./last_hour";
import { shellWord } from "./load_fields";
import { LoadForm } from "./load_form";
import { LoadMeter } from "./load_meter";
import { ModelActions } from "./model_actions";
import { memoryText, reasonsOf, requestCount, stateText } from "./model_words";
import { StateMark } from "./state_mark";

interface ModelPageProps {
  name: string;
  /** Undefined: not read yet. */
  listing: AdminModels | undefined;
  error: Error | null;
}

export function ModelPage({ name, listing, error }: ModelPageProps) {
  const model = listing?.models.find((each) => each.name === name || each.aliases.includes(name));
  return (
    <ViewFrame title={name}>
      <a href={routeHash("models")} className="self-start text-sm underline underline-offset-2">
        All models
      </a>
      {error && <ErrorNote {...describeError(error)} />}
      {listing !== undefined && model === undefined && <p>No model is named {name}.</p>}
      {model !== undefined && <ModelDetails model={model} />}
    </ViewFrame>
  );
}

function ModelDetails({ model }: { model: AdminModel }) {
  return (
    <>
      <StateSection model={model} />
      <LastHourSection model={model.name} />
      <Section title="Load with values">
        <LoadForm model={model} />
      </Section>
      <EnginesSection model={model} />
      <LogSection name={model.name} />
      <DefinitionSection model={model} />
    </>
  );
}

function StateSection({ model }: { model: AdminModel }) {
  const now = Date.now() / 1000;
  const reasons = reasonsOf(model, now);
  return (
    <Section title="State">
      <div className="flex flex-wrap items-center justify-between gap-3">
        <StateMark state={model.runtime_state} text={stateText(model)} />
        <ModelActions model={model} />
      </div>
      <LoadMeter model={model} now={now} />
      {reasons.map((reason) => (
        <p key={reason} className="text-sm break-words text-warn">
          {showCode(reason)}
        </p>
      ))}
      <Facts
        entries={[
          ["Because", `${model.statement.reason}, since ${timeText(model.statement.since)}`],
          ["Backend", model.resolved_backend],
          ["Other names", model.aliases.join(", ")],
          ["Replicas", `${model.loaded_replicas} of ${model.replicas} serve; at most ${model.replica_max}`],
          ["Requests", `${requestCount(model.inflight_requests)} running, ${requestCount(model.queue_depth)} waiting`],
          ["At a time", `${model.effective_target_inflight} requests per replica`],
          ["Memory", memoryText(model)],
          ["Measured", model.vram_estimate_source === "observed_load_delta" ? null : measuredText(model)],
          ["Takes", model.capabilities.modalities.join(", ")],
          ["Values of the load", overrideText(model)],
          ["Exit code", model.exit_code],
        ]}
      />
      {model.held_by.length > 0 && (
        <ul aria-label="Requests that hold the model" className="text-sm">
          {model.held_by.map((request) => (
            <li key={request.request_id}>
              {request.request_id} for {durationText(now - request.since)}
            </li>
          ))}
        </ul>
      )}
      {model.last_error?.includes("\n") && (
        <details className="text-sm">
          <summary className="cursor-pointer">The whole error</summary>
          <Lines label="Error" text={model.last_error} />
        </details>
      )}
    </Section>
  );
}

function measuredText(model: AdminModel): string | null {
  return model.vram_observed_mib === null ? null : mibText(model.vram_observed_mib);
}

function overrideText(model: AdminModel): string {
  return Object.entries(model.load_override)
    .map(([field, value]) => `${field} = ${JSON.stringify(value)}`)
    .join(", ");
}

function EnginesSection({ model }: { model: AdminModel }) {
  const client = useClient();
  const commands = useQuery(commandsQuery(client));
  const words = commands.data?.[model.name];
  return (
    <Section title="Engines">
      {model.replica_details.length === 0 && <p className="text-sm text-faint">No engine runs.</p>}
      <ul className="flex flex-col gap-1 text-sm">
        {model.replica_details.map((replica) => (
          <li key={replica.name} className="break-words">
            <span className="font-mono">{replica.name}</span>: {replica.phase}
            {replica.outdated && ", of an older definition"}, {requestCount(replica.inflight)} running
            {replica.host && `, on host ${replica.host}`}
            {replica.started_at !== null && `, since ${timeText(replica.started_at)}`}
          </li>
        ))}
      </ul>
      {words !== undefined && (
        <details className="text-sm">
          <summary className="cursor-pointer">Command line of the newest engine</summary>
          <Lines label="Command line" text={words.map(shellWord).join(" ")} />
        </details>
      )}
    </Section>
  );
}

const LOG_LINES = 100;

function LogSection({ name }: { name: string }) {
  const client = useClient();
  const logs = useQuery(logsQuery(client, name, LOG_LINES));
  return (
    <Section title="Log">
      {logs.error && <ErrorNote {...describeError(logs.error)} />}
      {logs.data === "" && <p className="text-sm text-faint">No engine has written anything yet.</p>}
      {logs.data && <Lines label="Last lines" text={logs.data} />}
      <SameByCommand command={`roundhouse logs ${shellWord(name)} --follow`} />
    </Section>
  );
}

function DefinitionSection({ model }: { model: AdminModel }) {
  const client = useClient();
  const queries = useQueryClient();
  const removal = useMutation({
    mutationFn: () => undeclareModel(client, model.name),
    onSuccess: () => {
      navigate("models", null, true);
      return queries.invalidateQueries({ queryKey: ["admin"] });
    },
  });
  const declared = Object.entries(model.definition).filter(([, value]) => value !== null);
  return (
    <Section title="Definition">
      <p className="text-sm text-faint">
        {model.declared_by === "files"
          ? "Declared in the desired-state files."
          : model.declared_by === "runtime"
            ? "Declared at run time, in no file: roundhouse declarations export prints what to commit."
            : "Declared by nobody: its file lies in a models folder, and the desired-state files say discover: true."}
      </p>
      <details className="text-sm">
        <summary className="cursor-pointer">All fields that are set</summary>
        <Facts entries={declared.map(([field, value]) => [field, JSON.stringify(value)] as const)} />
      </details>
      {model.declared_by === "runtime" && (
        <ConfirmButton
          icon="undo"
          question={`Take the declaration of ${model.name} back?`}
          onConfirm={() => removal.mutate()}
        >
          Take the declaration back
        </ConfirmButton>
      )}
      {removal.error && <ErrorNote {...describeError(removal.error)} />}
      <SameByCommand
        command={
          model.declared_by === "runtime"
            ? `roundhouse declarations rm ${shellWord(model.name)}`
            : `roundhouse ${model.declared_by === "files" ? "drift" : "models"}`
        }
      />
    </Section>
  );
}

/** Text as a terminal shows it. It scrolls by itself, and takes the focus so that the keyboard can scroll it. */
function Lines({ label, text }: { label: string; text: string }) {
  return (
    <section
      // biome-ignore lint/a11y/noNoninteractiveTabindex: as said above
      tabIndex={0}
      aria-label={label}
      className="max-h-80 overflow-auto rounded-md border border-line bg-panel p-2"
    >
      <pre className="font-mono text-xs whitespace-pre-wrap break-all">{text}</pre>
    </section>
  );
}
