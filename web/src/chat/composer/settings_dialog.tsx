/** Settings of one conversation: instructions, parameters, presets, tools, and collections of documents. */
import { useQuery } from "@tanstack/react-query";
import { useClient } from "../../api/access";
import { Dialog } from "../../ui/controls";
import type { ConversationSettings, Parameters } from "../conversations";
import { PresetsForm } from "./presets_form";
import { defaultsOf, EFFORTS, NUMBER_FIELDS, withNumber } from "./sampling";
import { SourcesForm } from "./sources_form";
import type { SettingsInUse } from "./use_settings";

interface SettingsDialogProps {
  isOpen: boolean;
  onClose: () => void;
  model: string;
  inUse: SettingsInUse;
}

export function SettingsDialog({ isOpen, onClose, model, inUse: { settings, change } }: SettingsDialogProps) {
  return (
    <Dialog title="Settings of this conversation" isOpen={isOpen} onClose={onClose}>
      <div className="flex flex-col gap-4">
        <label className="flex flex-col gap-1 text-sm">
          Instructions (system prompt)
          <textarea
            rows={4}
            defaultValue={settings.instructions ?? ""}
            key={settings.instructions ?? ""}
            onBlur={({ target }) => change({ instructions: target.value })}
            className="rounded-md border border-line bg-raised p-2"
          />
        </label>
        <ParametersForm model={model} settings={settings} onChange={(parameters) => change({ parameters })} />
        <PresetsForm settings={settings} onApply={change} />
        <SourcesForm settings={settings} onChange={change} />
      </div>
    </Dialog>
  );
}

interface ParametersFormProps {
  model: string;
  settings: ConversationSettings;
  onChange: (parameters: Parameters) => void;
}

function ParametersForm({ model, settings, onChange }: ParametersFormProps) {
  const client = useClient();
  // An engine without this route, or one that is not loaded, tells no defaults: the fields then say "the model's own".
  const props = useQuery({
    queryKey: ["props", model],
    queryFn: () => client.request<unknown>("/props", { query: { model } }),
    enabled: model !== "",
    retry: false,
  });
  const defaults = defaultsOf(props.data);
  const parameters = settings.parameters ?? {};
  return (
    <fieldset>
      <legend className="mb-1 text-sm font-semibold">Parameters</legend>
      <div className="grid grid-cols-2 gap-2 sm:grid-cols-3">
        {NUMBER_FIELDS.map(({ name, label, min, max, step }) => (
          <label key={name} className="flex flex-col gap-1 text-sm">
            {label}
            <input
              type="number"
              min={min}
              max={max}
              step={step}
              placeholder={defaults[name] === undefined ? "the model's own" : `${defaults[name]} (the model's own)`}
              defaultValue={parameters[name] ?? ""}
              key={parameters[name] ?? ""}
              onBlur={({ target }) => {
                if (target.validity.valid) onChange(withNumber(parameters, name, target.value));
              }}
              className="rounded-md border border-line bg-raised px-2 py-1.5 invalid:border-bad"
            />
          </label>
        ))}
        <label className="flex flex-col gap-1 text-sm">
          Reasoning effort
          <select
            value={parameters.reasoning_effort ?? ""}
            onChange={({ target }) => {
              const { reasoning_effort: _, ...others } = parameters;
              const effort = EFFORTS.find((each) => each === target.value);
              onChange(effort === undefined ? others : { ...others, reasoning_effort: effort });
            }}
            className="rounded-md border border-line bg-raised px-2 py-1.5"
          >
            <option value="">the model's own</option>
            {EFFORTS.map((effort) => (
              <option key={effort}>{effort}</option>
            ))}
          </select>
        </label>
      </div>
    </fieldset>
  );
}
