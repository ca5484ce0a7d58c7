import { expect, it } from "vitest";
import type { Conversation, ConversationSettings } from "./conversations";
import { requestFields } from "./request_fields";

function conversation(settings: ConversationSettings | null, model: string | null = null): Conversation {
  return { id: "conv_1", created_at: 0, metadata: {}, settings, model };
}

it("asks for the next answer of a conversation, and leaves out what is not set", () => {
  expect(requestFields(conversation({ model: "m" }), "msg_1")).toEqual({
    model: "m",
    conversation: { id: "conv_1", parent_id: "msg_1" },
    input: [],
  });
});

it.each([
  ["said", "said", { model: "set" }, "last"],
  ["set", undefined, { model: "set" }, "last"],
  ["last", undefined, null, "last"],
  ["last", "", {}, "last"],
])("takes the model %j", (expected, said, settings, last) => {
  expect(requestFields(conversation(settings, last), null, said).model).toBe(expected);
});

it("sends instructions and parameters by the names of the API", () => {
  const parameters = { temperature: 0, top_k: 7, max_output_tokens: 5, reasoning_effort: "low" } as const;
  expect(requestFields(conversation({ model: "m", instructions: "Be brief.", parameters }), null)).toMatchObject({
    instructions: "Be brief.",
    temperature: 0,
    top_k: 7,
    max_output_tokens: 5,
    reasoning: { effort: "low" },
  });
  expect(requestFields(conversation({ instructions: "", parameters }), null)).not.toHaveProperty("reasoning_effort");
  expect(requestFields(conversation({ instructions: "" }), null)).not.toHaveProperty("instructions");
});

it("asks before each call of a tool but those that are always allowed", () => {
  const settings = { toolServers: ["desk", "desk2"], approvedTools: ["desk/look", "desk/a/b", "other/look"] };
  expect(requestFields(conversation(settings), null).tools).toEqual([
    { type: "mcp", server_label: "desk", require_approval: { never: { tool_names: ["look", "a/b"] } } },
    { type: "mcp", server_label: "desk2", require_approval: "always" },
  ]);
});

it("searches the chosen collections, and has the passages told", () => {
  const fields = requestFields(conversation({ collections: ["vs_1", "vs_2"] }), null);
  expect(fields.tools).toEqual([{ type: "file_search", vector_store_ids: ["vs_1", "vs_2"] }]);
  expect(fields.include).toEqual(["file_search_call.results"]);
});
