/** Parameters of sampling: their bounds, what a model uses by itself, and how a form's text becomes a value. Pure. */
import { isRecord } from "../../api/errors";
import type { Parameters } from "../conversations";

export type NumberName = "temperature" | "top_p" | "top_k" | "min_p" | "max_output_tokens" | "seed";

export interface NumberField {
  name: NumberName;
  label: string;
  min: number;
  max: number;
  step: number | "any";
}

export const NUMBER_FIELDS: readonly NumberField[] = [
  { name: "temperature", label: "Temperature", min: 0, max: 2, step: "any" },
  { name: "top_p", label: "Top p", min: 0, max: 1, step: "any" },
  { name: "top_k", label: "Top k", min: 0, max: 1_000_000, step: 1 },
  { name: "min_p", label: "Min p", min: 0, max: 1, step: "any" },
  { name: "max_output_tokens", label: "Most tokens of an answer", min: 1, max: 10_000_000, step: 1 },
  { name: "seed", label: "Seed", min: 0, max: 4_294_967_295, step: 1 },
];

export const EFFORTS = ["none", "minimal", "low", "medium", "high", "xhigh", "max"] as const;

/** Returns the parameters with one changed; an empty text, or one that is no number, removes it. */
export function withNumber(parameters: Parameters, name: NumberName, text: string): Parameters {
  const { [name]: _, ...others } = parameters;
  const value = text.trim() === "" ? Number.NaN : Number(text);
  return Number.isFinite(value) ? { ...others, [name]: value } : others;
}

/** Returns what an engine samples by where a request says nothing, from its answer to `/props`. */
export function defaultsOf(props: unknown): Partial<Record<NumberName, number>> {
  const settings =
    isRecord(props) && isRecord(props.default_generation_settings) ? props.default_generation_settings : {};
  const params = isRecord(settings.params) ? settings.params : settings;
  const found: Partial<Record<NumberName, number>> = {};
  for (const { name } of NUMBER_FIELDS) {
    const value = params[name === "max_output_tokens" ? "n_predict" : name];
    // -1 stands for "without a bound", and a seed beyond 31 bits for "another each time".
    if (typeof value === "number" && value >= 0 && !(name === "seed" && value > 0x7fffffff)) {
      found[name] = Math.round(value * 1000) / 1000;
    }
  }
  return found;
}
