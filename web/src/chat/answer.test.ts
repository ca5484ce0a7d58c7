import { describe, expect, it } from "vitest";
import type { ServerEvent } from "../api/sse";
import { type Answer, applyEvent, EMPTY_ANSWER, failAnswer, partialItems } from "./answer";

const event = (data: unknown): ServerEvent => ({ event: "", data: JSON.stringify(data), comment: null });
const comment = (text: string): ServerEvent => ({ event: "", data: "", comment: text });
const grow = (...events: ServerEvent[]): Answer => events.reduce(applyEvent, EMPTY_ANSWER);

const added = (index: number, item: object) => event({ type: "response.output_item.added", output_index: index, item });
const delta = (index: number, text: string) =>
  event({ type: "response.output_text.delta", output_index: index, content_index: 0, delta: text });
const message = { id: "msg_1", type: "message", role: "assistant", status: "in_progress", content: [] };

describe("applyEvent", () => {
  it.each([
    [
      "queue",
      { queue_position: 3, wait_p50_ms: 1500, wait_p90_ms: 9000 },
      { queuePosition: 3, waitP50Ms: 1500, waitP90Ms: 9000 },
    ],
    ["load", { progress: 0.25 }, { progress: 0.25 }],
    ["prefill", { progress: 0.5, prompt_tokens: 90, cached_tokens: 8 }, { promptTokens: 90, cachedTokens: 8 }],
  ])("tells the progress of the stage %s", (stage, fields, told) => {
    const answer = grow(comment(`progress ${JSON.stringify({ stage, model: "m", ...fields })}`));
    expect(answer.progress).toMatchObject({ stage, model: "m", ...told });
  });

  it.each(["ka", "progress", "progress {", 'progress {"stage":"other"}', "load-progress {}"])(
    "ignores the comment %j",
    (text) => expect(grow(comment(text))).toEqual(EMPTY_ANSWER),
  );

  it.each(["", "[DONE]", "null", "[]", '{"type":"response.new_event"}'])("ignores the data %j", (data) =>
    expect(grow({ event: "", data, comment: null })).toEqual(EMPTY_ANSWER),
  );

  it("ends the progress with the first item", () => {
    const waits = comment('progress {"stage":"queue","model":"m"}');
    expect(grow(waits, added(0, message)).progress).toBeNull();
  });

  it("keeps the text of a failed answer, and says why it failed", () => {
    const failed = { id: "resp_1", status: "failed", output: [], error: { code: "engine_error", message: "Gone." } };
    const answer = grow(
      added(0, message),
      delta(0, "One "),
      delta(0, "two"),
      event({ type: "response.failed", response: failed }),
    );
    expect(answer.status).toBe("failed");
    expect(answer.error).toEqual({ code: "engine_error", message: "Gone.", nextSteps: [] });
    expect(partialItems(answer)).toMatchObject([{ id: "msg_1", status: "incomplete", content: [{ text: "One two" }] }]);
  });

  it("says of a cancelled answer that it was stopped", () => {
    const end = {
      type: "response.incomplete",
      response: { id: "resp_1", status: "cancelled", output: [], error: null },
    };
    const answer = grow(added(0, message), delta(0, "One"), event(end));
    expect([answer.status, answer.error?.code]).toEqual(["failed", "stream_stopped"]);
    expect(partialItems(answer)).toMatchObject([{ content: [{ text: "One" }] }]);
  });

  it("reads an error event and one in the form of an envelope", () => {
    for (const data of [
      { type: "error", code: "gateway_restarted", message: "It was restarted.", next_steps: ["Continue."] },
      { error: { code: "gateway_restarted", message: "It was restarted.", next_steps: ["Continue."] } },
    ]) {
      const { error, status } = grow(event(data));
      expect(status).toBe("failed");
      expect(error).toEqual({ code: "gateway_restarted", message: "It was restarted.", nextSteps: ["Continue."] });
    }
  });
});

describe("partialItems", () => {
  const thought = {
    id: "rs_1",
    type: "reasoning",
    status: "completed",
    content: [{ type: "reasoning_text", text: "Hm" }],
  };
  const call = { id: "mcp_1", type: "mcp_call", status: "completed", arguments: "{}", output: "4" };

  it.each([
    ["thoughts and calls with their result", [thought, call], ["rs_1", "mcp_1"]],
    ["no call without its result", [thought, { ...call, status: "in_progress" }], ["rs_1"]],
    ["no message without text", [thought, message], ["rs_1"]],
    ["no call of the client's own tools", [{ id: "fc_1", type: "function_call", status: "completed" }], []],
  ])("keeps %s", (_, items, ids) => {
    const answer = grow(...items.map((item, index) => added(index, item)));
    expect(partialItems(answer).map(({ id }) => id)).toEqual(ids);
  });
});

describe("failAnswer", () => {
  it("keeps the error that the stream told", () => {
    const told = grow(event({ type: "error", code: "one", message: "One." }));
    expect(failAnswer(told, { code: "two", message: "Two.", nextSteps: [] }).error?.code).toBe("one");
  });
});
