/** Named sets of settings, kept in this browser, and as a file of JSON. */
import { isRecord } from "../../api/errors";
import type { ConversationSettings, Parameters } from "../conversations";
import { EFFORTS, NUMBER_FIELDS } from "./sampling";

export interface Preset {
  name: string;
  instructions: string;
  parameters: Parameters;
}

const STORED = "roundhouse.presets";
const FORMAT = "roundhouse.presets";

/** Returns the presets of this browser, in order of their names. */
export function readPresets(): Preset[] {
  try {
    return parsePresets(localStorage.getItem(STORED) ?? "[]");
  } catch {
    return [];
  }
}

/** Keeps the presets in this browser. Throws where it has no storage. */
export function storePresets(presets: readonly Preset[]): void {
  localStorage.setItem(STORED, JSON.stringify(presets));
}

/** Returns `presets` with `added`, which take the place of those of the same name, in order of the names. */
export function withPresets(presets: readonly Preset[], added: readonly Preset[]): Preset[] {
  const named = new Map([...presets, ...added].map((preset) => [preset.name, preset]));
  return [...named.values()].sort((one, other) => one.name.localeCompare(other.name));
}

/** Returns the text of a file with the presets. */
export function exportPresets(presets: readonly Preset[]): string {
  return `${JSON.stringify({ format: FORMAT, presets }, null, 2)}\n`;
}

/** Returns the presets of a file, or of what this browser kept. Unknown fields are left out. Throws Error for anything else. */
export function parsePresets(text: string): Preset[] {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch {
    throw new Error("The file is no JSON.");
  }
  const listed = isRecord(value) && value.format === FORMAT ? value.presets : value;
  if (!Array.isArray(listed) || !listed.every((each) => isRecord(each) && typeof each.name === "string")) {
    throw new Error("The file has no presets of Roundhouse.");
  }
  return withPresets([], listed.map(readPreset));
}

/** Returns what of the settings a preset keeps. */
export function presetOf(name: string, settings: ConversationSettings): Preset {
  return { name, instructions: settings.instructions ?? "", parameters: settings.parameters ?? {} };
}

function readPreset(value: Record<string, unknown>): Preset {
  const given = isRecord(value.parameters) ? value.parameters : {};
  const parameters: Record<string, unknown> = {};
  for (const { name } of NUMBER_FIELDS) {
    if (typeof given[name] === "number") parameters[name] = given[name];
  }
  if (EFFORTS.some((effort) => effort === given.reasoning_effort)) parameters.reasoning_effort = given.reasoning_effort;
  return {
    name: String(value.name),
    instructions: typeof value.instructions === "string" ? value.instructions : "",
    parameters: parameters as Parameters,
  };
}
