import "fake-indexeddb/auto";
import { expect, it } from "vitest";
import { textItem } from "../transfer/portable";
import { browserRequest } from "./browser_request";
import { browserStore } from "./browser_store";

const PART = { type: "input_text", text: "Hello" };

it("sends the shown branch, and has nothing stored", async () => {
  const store = browserStore();
  const items = [textItem("u1", null, "user", "Hello"), textItem("a1", "u1", "assistant", "Old")];
  const made = await store.create({ title: "Mine", settings: { model: "m", instructions: "Be brief." }, items });
  await store.update(made.id, { active_item_id: "u1" });
  const fields = await browserRequest(made, "u1");
  expect(fields).toMatchObject({ model: "m", instructions: "Be brief.", store: false });
  expect(fields).not.toHaveProperty("conversation");
  expect(fields.input).toEqual([{ type: "message", role: "user", content: [PART] }]);
  expect((await browserRequest(made, "u1", "other")).model).toBe("other");
});

it("keeps ids of requests for calls and of calls, and the status of what was cut short", async () => {
  const store = browserStore();
  const made = await store.create({ title: "Tools", settings: {} });
  const asked = { id: "mcpr_1", type: "mcp_approval_request", server_label: "desk", name: "look", arguments: "{}" };
  const cut = { id: "a2", type: "message", role: "assistant", content: [], status: "incomplete" };
  const answered = { type: "mcp_approval_response", approval_request_id: "mcpr_1", approve: true };
  const called = { id: "mcp_1", type: "mcp_call", server_label: "desk", name: "look", arguments: "{}", output: "Rain" };
  await store.addItems(made.id, [asked, answered, called, cut], null);
  expect((await browserRequest(made, "a2")).input).toEqual([
    asked,
    answered,
    called,
    { type: "message", role: "assistant", content: [], status: "incomplete" },
  ]);
});
