import { describe, expect, it } from "vitest";
import type { Item } from "../../api/items";
import { readApprovals } from "./approvals";
import { errorText, toolNameOf } from "./tool_call";

const ASKED: Item = { id: "mcpr_1", type: "mcp_approval_request", parent_id: null, server_label: "desk", name: "look" };
const ANSWERED: Item = {
  id: "mcpa_1",
  type: "mcp_approval_response",
  parent_id: "mcpr_1",
  approval_request_id: "mcpr_1",
  approve: false,
};
const MESSAGE: Item = { id: "msg_1", type: "message", role: "user", parent_id: "mcpr_1" };

describe("readApprovals", () => {
  it("finds a request that waits", () => {
    expect([...readApprovals([MESSAGE, ASKED]).pending.keys()]).toEqual(["mcpr_1"]);
  });

  it("finds how a request was answered", () => {
    const { pending, approved } = readApprovals([ASKED, ANSWERED]);
    expect(pending.size).toBe(0);
    expect(approved.get("mcpr_1")).toBe(false);
  });

  it("forgets a request that a later message has passed over", () => {
    const { pending, approved } = readApprovals([ASKED, MESSAGE]);
    expect(pending.size + approved.size).toBe(0);
  });
});

it("names a tool with its server", () => {
  expect(toolNameOf(ASKED)).toBe("desk/look");
});

it.each([
  [null, null],
  ["gone", "gone"],
  [{ type: "http_error", code: 502, message: "no answer" }, "no answer"],
  [{ type: "mcp_tool_execution_error", content: [{ type: "text", text: "no such city" }] }, "no such city"],
  [{ odd: 1 }, '{"odd":1}'],
])("says of the error %j: %j", (error, text) => {
  expect(errorText(error)).toBe(text);
});
