/** Presets of this browser: apply, save, delete, and exchange as a file. */
import { type ChangeEvent, useRef, useState } from "react";
import { Button, IconButton } from "../../ui/controls";
import { Icon } from "../../ui/icons";
import type { ConversationSettings } from "../conversations";
import { exportPresets, type Preset, parsePresets, presetOf, readPresets, storePresets, withPresets } from "./presets";

interface PresetsFormProps {
  settings: ConversationSettings;
  onApply: (changed: Partial<ConversationSettings>) => void;
}

export function PresetsForm({ settings, onApply }: PresetsFormProps) {
  const file = useRef<HTMLInputElement>(null);
  const [presets, setPresets] = useState(readPresets);
  const [name, setName] = useState("");
  const [problem, setProblem] = useState<string | null>(null);

  function keep(changed: Preset[]) {
    try {
      storePresets(changed);
      setPresets(changed);
      setProblem(null);
    } catch {
      setProblem("This browser keeps nothing for this page, so the presets are not saved.");
    }
  }

  async function load({ target }: ChangeEvent<HTMLInputElement>) {
    const [chosen] = target.files ?? [];
    if (chosen === undefined) return;
    try {
      keep(withPresets(presets, parsePresets(await chosen.text())));
    } catch (error) {
      setProblem(error instanceof Error ? error.message : String(error));
    }
    target.value = "";
  }

  return (
    <fieldset>
      <legend className="mb-1 text-sm font-semibold">Presets of instructions and parameters</legend>
      <ul aria-label="Presets" className="flex flex-wrap gap-2">
        {presets.map((preset) => (
          <li key={preset.name} className="flex items-center rounded-md border border-line">
            <Button
              look="quiet"
              onClick={() => onApply({ instructions: preset.instructions, parameters: preset.parameters })}
            >
              {preset.name}
            </Button>
            <IconButton
              label={`Delete preset ${preset.name}`}
              onClick={() => keep(presets.filter((each) => each.name !== preset.name))}
            >
              <Icon name="close" />
            </IconButton>
          </li>
        ))}
      </ul>
      <div className="mt-2 flex flex-wrap items-center gap-2">
        <input
          aria-label="Name of the preset"
          placeholder="Name"
          value={name}
          onChange={({ target }) => setName(target.value)}
          className="rounded-md border border-line bg-raised px-2 py-1.5 text-sm"
        />
        <Button
          disabled={name.trim() === ""}
          onClick={() => {
            keep(withPresets(presets, [presetOf(name.trim(), settings)]));
            setName("");
          }}
        >
          Save as preset
        </Button>
        <Button disabled={presets.length === 0} onClick={() => saveFile("presets.json", exportPresets(presets))}>
          Export
        </Button>
        <Button onClick={() => file.current?.click()}>Import</Button>
        <input
          ref={file}
          type="file"
          accept="application/json,.json"
          aria-label="Import presets"
          tabIndex={-1}
          className="hidden"
          onChange={(event) => void load(event)}
        />
      </div>
      {problem !== null && (
        <p role="alert" className="mt-1 text-sm text-bad">
          {problem}
        </p>
      )}
    </fieldset>
  );
}

function saveFile(name: string, text: string): void {
  const url = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  link.click();
  URL.revokeObjectURL(url);
}
