/** The form of a load: from the constraints of a model's row to controls, and from what was entered to a body. Pure. */

export type LoadValue = string | number | boolean | null;

/** What a field of a load accepts (docs/admin.md, "Effective values, and null"). Only the entries that apply are present. */
export interface LoadConstraint {
  kind: "integer" | "float" | "enum" | "integer_or_null" | "string_or_null";
  minimum?: number;
  maximum?: number;
  step?: number;
  /** Null differs from no default. */
  default?: LoadValue;
  null_means?: string;
  format?: string;
  unit?: string;
  display_unit?: string;
  allowed_values?: LoadValue[];
  examples?: LoadValue[];
}

/** Presets of fields that belong together. */
export interface PairPresets {
  kind: "pair_presets";
  fields: string[];
  recommended_pairs: ({ label: string } & Record<string, LoadValue>)[];
  notes?: string[];
}

/** What is entered in a form, by field, as text. `NULL_TEXT` is null; empty, or missing: left out of the load. */
export type Entered = Record<string, string>;

export const NULL_TEXT = "null";

/** Fields whose default is what a control offers first, and not in force: without a value there is no speculation. */
const CONTROL_DEFAULTS: ReadonlySet<string> = new Set(["llama_server_spec_type"]);

/** Returns whether the field may be null. */
export function allowsNull(constraint: LoadConstraint): boolean {
  return constraint.kind === "integer_or_null" || constraint.kind === "string_or_null";
}

/** Returns the text of a value in a form. */
export function enteredText(value: LoadValue): string {
  return value === null ? NULL_TEXT : String(value);
}

/**
 * Returns the value in force where a load sets none: of the load in force, else of the definition, else the default. A key
 * that is present in `override` rules, whatever its value. Undefined: no value is known.
 */
export function effectiveValue(
  field: string,
  constraint: LoadConstraint | undefined,
  override: Record<string, LoadValue>,
  definition: Record<string, unknown>,
): LoadValue | undefined {
  const value = field in override ? override[field] : (definition[field] as LoadValue | undefined);
  if (CONTROL_DEFAULTS.has(field)) return value;
  return value ?? (constraint !== undefined && "default" in constraint ? constraint.default : value);
}

/** Returns what a user should know of the values that a field accepts: `512 to 131072 tokens, in steps of 256`. */
export function constraintText(constraint: LoadConstraint): string {
  const { minimum, maximum, step, unit, null_means: nullMeans, allowed_values: allowed, examples } = constraint;
  const parts: string[] = [];
  if (minimum !== undefined && maximum !== undefined) parts.push(`${minimum} to ${maximum}`);
  else if (minimum !== undefined) parts.push(`${minimum} or more`);
  else if (maximum !== undefined) parts.push(`${maximum} or less`);
  if (unit !== undefined && unit !== null) parts[0] = parts.length > 0 ? `${parts[0]} ${unit}` : `in ${unit}`;
  if (step !== undefined && step !== null && step !== 1) parts.push(`in steps of ${step}`);
  if (allowed === undefined && examples !== undefined && examples.length > 0)
    parts.push(`such as ${examples.slice(0, 3).map(String).join(", ")}`);
  if (nullMeans) parts.push(`null: ${nullMeans}`);
  return parts.join(", ");
}

/** Returns the values that a select offers, as texts, null included; null: the field is written in. */
export function choicesOf(constraint: LoadConstraint): string[] | null {
  if (constraint.allowed_values === undefined) return null;
  const values = constraint.allowed_values.map(enteredText);
  return allowsNull(constraint) && !values.includes(NULL_TEXT) ? [...values, NULL_TEXT] : values;
}

/** Returns the value of a field's text, undefined if it is left out. Throws Error, for people, where it is no number. */
export function readValue(text: string, constraint: LoadConstraint): LoadValue | undefined {
  const trimmed = text.trim();
  if (trimmed === "") return undefined;
  if (trimmed === NULL_TEXT && (allowsNull(constraint) || constraint.allowed_values?.includes(null))) return null;
  if (constraint.kind === "string_or_null") return trimmed;
  const allowed = constraint.allowed_values?.find((value) => String(value) === trimmed);
  if (allowed !== undefined) return allowed;
  if (constraint.kind === "enum") return trimmed;
  const number = Number(trimmed);
  if (!Number.isFinite(number)) throw new Error(`${trimmed} is no number.`);
  if (constraint.kind !== "float" && !Number.isInteger(number)) throw new Error(`${trimmed} is no whole number.`);
  return number;
}

/**
 * Returns the body of a load with what is entered; `replicas` is a whole number. The gateway checks bounds and what fits
 * together: it knows more than the constraints say.
 */
export function loadBody(
  entered: Entered,
  constraints: Record<string, LoadConstraint>,
): { values: Record<string, LoadValue>; problems: Record<string, string> } {
  const values: Record<string, LoadValue> = {};
  const problems: Record<string, string> = {};
  for (const [field, text] of Object.entries(entered)) {
    try {
      const value = readValue(text, constraints[field] ?? { kind: "integer" });
      if (value !== undefined) values[field] = value;
    } catch (error) {
      problems[field] = error instanceof Error ? error.message : String(error);
    }
  }
  return { values, problems };
}

/** Returns the command that loads a model with these values. */
export function loadCommand(model: string, values: Record<string, LoadValue>, restart: boolean): string {
  const words = ["roundhouse", "load", shellWord(model)];
  for (const [field, value] of Object.entries(values)) {
    if (field === "replicas") words.push("--replicas", String(value));
    else words.push("--set", shellWord(`${field}=${value}`));
  }
  if (restart) words.push("--restart");
  return words.join(" ");
}

/** Returns a word as a shell takes it. */
export function shellWord(word: string): string {
  return /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'\\''`)}'`;
}
