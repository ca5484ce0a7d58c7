import { expect, test } from "vitest";
import type { AdminModel } from "./admin_models";
import { loadStage, memoryText, reasonsOf, stageText, stateText } from "./model_words";

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

test("a load has a phase, and the seconds of its newest engine", () => {
  const loading = (load_progress: number | null, ...starts: (number | null)[]) => {
    const replica_details = starts.map((started_at) => ({ phase: "starting", started_at }));
    const stage = loadStage(modelOf({ runtime_state: "loading", load_progress, replica_details } as never), 100);
    return stage && `${stage.phase}: ${stageText(stage)}`;
  };
  expect(loading(null)).toBe("Before its start: ");
  expect(loading(0.3)).toBe("Downloading: 30 %");
  expect(loading(0.42, 20, 88)).toBe("Reading the model: 42 %, 12 s");
  expect(loading(null, null)).toBe("Reading the model: ");
  expect(loading(1, 35)).toBe("Until its first token: 100 %, 1 min 5 s");
  expect(loadStage(modelOf({ runtime_state: "loaded", load_progress: null, replica_details: [] }), 100)).toBeNull();
});

test("states and memory in words", () => {
  expect(stateText({ runtime_state: "loading", load_progress: 0.42 })).toBe("loading 42 %");
  expect(stateText({ runtime_state: "loading", load_progress: null })).toBe("loading");
  expect(stateText({ runtime_state: "loaded", load_progress: 1 })).toBe("loaded");
  expect(memoryText({ vram_estimate_mib: 96, vram_estimate_source: "predicted" })).toBe("96.0 MiB, predicted");
  expect(memoryText({ vram_estimate_mib: null, vram_estimate_source: "unavailable" })).toBe("not known");
});
