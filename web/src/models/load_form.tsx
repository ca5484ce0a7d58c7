/** Loads a model with other values than the declared ones, within the constraints that the model's row names. */
import { type FormEvent, useState } from "react";
import { describeError } from "../api/client";
import { Button, ErrorNote, SameByCommand } from "../ui/controls";
import { Field, INPUT } from "../ui/view";
import type { AdminModel } from "./admin_models";
import { DryRunButton } from "./dry_run_button";
import {
  choicesOf,
  constraintText,
  type Entered,
  effectiveValue,
  enteredText,
  type LoadConstraint,
  loadBody,
  loadCommand,
} from "./load_fields";
import { useModelAction } from "./use_model_actions";

const REPLICAS = "replicas";

export function LoadForm({ model }: { model: AdminModel }) {
  const [entered, setEntered] = useState<Entered>({});
  const action = useModelAction(model.name);
  const isUp = model.runtime_state === "loaded" || model.runtime_state === "loading";
  const constraints: Record<string, LoadConstraint> = {
    [REPLICAS]: { kind: "integer", minimum: 1, maximum: model.replica_max, default: model.replicas },
    ...model.load_constraints,
  };
  const { values, problems } = loadBody(entered, constraints);
  const isRestart = isUp && Object.keys(values).length > 0;

  function submit(event: FormEvent) {
    event.preventDefault();
    if (Object.keys(problems).length === 0 && !action.isPending)
      action.mutate({ kind: "load", values, restart: isRestart });
  }

  return (
    <form onSubmit={submit} aria-label="Load with values" noValidate className="flex flex-col gap-3">
      <p className="text-sm text-faint">
        What is left empty stays as declared. The values last until the model is unloaded or reset, and are written to
        no file.
      </p>
      <Presets model={model} onChosen={(chosen) => setEntered({ ...entered, ...chosen })} />
      <div className="grid gap-3 sm:grid-cols-2">
        {Object.entries(constraints).map(([field, constraint]) => (
          <LoadField
            key={field}
            field={field}
            constraint={constraint}
            effective={effectiveValue(
              field,
              constraint,
              model.load_override,
              field === REPLICAS ? {} : model.definition,
            )}
            text={entered[field] ?? ""}
            problem={problems[field]}
            onChange={(text) => setEntered({ ...entered, [field]: text })}
          />
        ))}
      </div>
      <div className="flex flex-wrap items-start gap-2">
        <Button look="main" icon="play" type="submit" className="self-start" aria-disabled={action.isPending}>
          {isRestart ? "Restart with these values" : "Load"}
        </Button>
        <DryRunButton
          key={JSON.stringify(values)}
          propose={() => ({ loads: { [model.name]: { values, restart: isRestart } } })}
        />
      </div>
      {action.error && <ErrorNote {...describeError(action.error)} />}
      <SameByCommand command={loadCommand(model.name, values, isRestart)} />
    </form>
  );
}

interface LoadFieldProps {
  field: string;
  constraint: LoadConstraint;
  /** Value in force without an entry; undefined: not known. */
  effective: ReturnType<typeof effectiveValue>;
  text: string;
  problem: string | undefined;
  onChange: (text: string) => void;
}

function LoadField({ field, constraint, effective, text, problem, onChange }: LoadFieldProps) {
  const choices = choicesOf(constraint);
  const asDeclared =
    effective === undefined || effective === null ? "as declared" : `as declared: ${enteredText(effective)}`;
  const note = problem ?? constraintText(constraint);
  return (
    <Field label={field} note={note || undefined}>
      {choices === null ? (
        <input
          className={INPUT}
          inputMode={constraint.kind === "string_or_null" ? "text" : "decimal"}
          placeholder={asDeclared}
          value={text}
          aria-invalid={problem !== undefined}
          onChange={(event) => onChange(event.target.value)}
        />
      ) : (
        <select className={INPUT} value={text} onChange={(event) => onChange(event.target.value)}>
          <option value="">{asDeclared}</option>
          {choices.map((choice) => (
            <option key={choice} value={choice}>
              {choice}
            </option>
          ))}
        </select>
      )}
    </Field>
  );
}

function Presets({ model, onChosen }: { model: AdminModel; onChosen: (entered: Entered) => void }) {
  return Object.entries(model.load_recommendations).map(([name, presets]) => (
    <fieldset key={name} className="rounded-md border border-line p-2 text-sm">
      <legend className="px-1">Presets of {presets.fields.join(", ")}</legend>
      <div className="flex flex-wrap gap-2">
        {presets.recommended_pairs.map((pair) => (
          <Button
            key={pair.label}
            onClick={() =>
              onChosen(Object.fromEntries(presets.fields.map((field) => [field, enteredText(pair[field] ?? null)])))
            }
          >
            {pair.label}
          </Button>
        ))}
      </div>
      {presets.notes?.map((note) => (
        <p key={note} className="mt-1 text-faint">
          {note}
        </p>
      ))}
    </fieldset>
  ));
}
