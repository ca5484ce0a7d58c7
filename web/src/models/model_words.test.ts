import { expect, test } from "vitest";
import type { AdminModel } from "./admin_models";
import { memoryText, reasonsOf, stateText } from "./model_words";

const CALM = { last_error: null, retry_at: null, blocked: [], drift: [], vram_warning: null, held_by: [] };

function modelOf(fields: Partial<AdminModel>): AdminModel {
  return { ...CALM, ...fields } as AdminModel;
}

test("a model that is as wanted has no reasons", () => {
  expect(reasonsOf(modelOf({}), 100)).toEqual([]);
});

test("an error is told by its plain words, then when it is tried again, then what waits", () => {
  const model = modelOf({ last_error: "out of memory\nlog line", retry_at: 165, blocked: ["No GPU is free."] });
  expect(reasonsOf(model, 100)).toEqual(["out of memory", "It is tried again in 1 min 5 s.", "No GPU is free."]);
  const ended = modelOf({ last_error: "the engine ended with exit code 1. Last log lines:\nno memory" });
  expect(reasonsOf(ended, 100)).toEqual(["the engine ended with exit code 1."]);
  expect(reasonsOf(modelOf({ retry_at: 100 }), 100)).toEqual(["It is tried again now."]);
});

test("states and memory in words", () => {
  expect(stateText({ runtime_state: "loading", load_progress: 0.42 })).toBe("loading 42 %");
  expect(stateText({ runtime_state: "loading", load_progress: null })).toBe("loading");
  expect(stateText({ runtime_state: "loaded", load_progress: 1 })).toBe("loaded");
  expect(memoryText({ vram_estimate_mib: 96, vram_estimate_source: "predicted" })).toBe("96.0 MiB, predicted");
  expect(memoryText({ vram_estimate_mib: null, vram_estimate_source: "unavailable" })).toBe("not known");
});
