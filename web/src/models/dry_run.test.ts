import { expect, it } from "vitest";
import { type DryRun, modelsOf, stepsOf } from "./dry_run";

const PLAN = { schema_version: 1, generation: 2, paused: false, actions: [], blocked: [], wake_at: null };
const NOTHING: DryRun = { ok: true, problems: [], changes: [], plan: PLAN };
const action = (kind: string, replica: string | null) => ({ kind, model: "chat", replica, reason: "why" });

it("says each step with its reason", () => {
  const kinds = ["preflight", "pull", "start", "drain", "undrain", "stop", "remove", "dance"];
  const actions = kinds.map((kind) => action(kind, kind === "preflight" || kind === "pull" ? null : "chat/0"));
  expect(stepsOf({ ...NOTHING, plan: { ...PLAN, actions } }, [])).toEqual(
    [
      "Check whether chat can start: why",
      "Pull the image of chat: why",
      "Start chat/0: why",
      "Let chat/0 finish its requests: why",
      "Let chat/0 take requests again: why",
      "Stop chat/0: why",
      "Remove chat/0: why",
      "dance chat/0: why",
    ].map((text) => ({ text, isObstacle: false })),
  );
});

it("says which replicas follow", () => {
  const change = { model: "chat", change: "edited", fields: [], effect: "restart", ends: [] } as const;
  const changes = [{ ...change, fields: [], ends: [], restarts: ["chat-0", "chat-1"] }];
  expect(stepsOf({ ...NOTHING, changes }, ["chat"])).toEqual([
    { text: "Then replace chat-0, chat-1, one at a time", isObstacle: false },
  ]);
});

it("says what stands in the way", () => {
  const blocked = ["chat", "other"].map((model) => ({ model, index: null, reason: "no GPU has room" }));
  expect(stepsOf({ ...NOTHING, plan: { ...PLAN, blocked, paused: true } }, ["chat"])).toEqual([
    { text: "chat cannot start: no GPU has room", isObstacle: true },
    { text: "The controller is paused: it does none of this until it goes on", isObstacle: true },
  ]);
  const problem = { file: "runtime declarations", line: null, field: "models.x.replicas", message: "must be 1" };
  expect(stepsOf({ ok: false, problems: [problem], changes: [], plan: null }, ["x"])).toEqual([
    { text: "models.x.replicas must be 1", isObstacle: true },
  ]);
});

it("says that nothing would change", () => {
  expect(stepsOf(NOTHING, ["chat"])).toEqual([{ text: "Nothing would change", isObstacle: false }]);
});

it("names the models of a proposal", () => {
  expect(modelsOf({ models: { a: {} }, loads: { b: { values: {}, restart: false } } })).toEqual(["a", "b"]);
  expect(modelsOf({})).toEqual([]);
});
