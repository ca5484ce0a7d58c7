// @vitest-environment node
/** The providers of the AI SDK, unmodified, over the gateway's golden events: each shows the thoughts, and once. */
import { readFileSync } from "node:fs";
import { createOpenResponses } from "@ai-sdk/open-responses";
import { createOpenAI } from "@ai-sdk/openai";
import { describe, expect, it } from "vitest";

const THOUGHT = "The quick brown fox";
const GOLDEN = new URL("../../../tests/golden/responses/", import.meta.url);
const PROMPT = [{ role: "user" as const, content: [{ type: "text" as const, text: "Hi" }] }];

/** Answers as the gateway does: a stream, or the response that ends it. Notes what the client calls itself. */
function gateway(golden: string, agents: string[] = []): typeof fetch {
  return async (_, init) => {
    agents.push(new Headers(init?.headers).get("user-agent") ?? "");
    const events = readFileSync(new URL(golden, GOLDEN), "utf8");
    if (JSON.parse(String(init?.body)).stream === true) {
      return new Response(events, { headers: { "content-type": "text/event-stream" } });
    }
    const last = /^data: (\{"type":"response.completed".*\})$/m.exec(events)?.[1] ?? "";
    return Response.json(JSON.parse(last).response);
  };
}

const openai = createOpenAI({ baseURL: "http://gateway/v1", apiKey: "none", fetch: gateway("custom.events") });
const agents: string[] = [];
const open = createOpenResponses({
  name: "roundhouse",
  url: "http://gateway/v1/responses",
  fetch: gateway("custom.open.events", agents),
});

describe.each([
  ["@ai-sdk/openai", () => openai.responses("m")],
  ["@ai-sdk/open-responses", () => open("m")],
])("%s", (_, model) => {
  it("shows streamed thoughts, piece by piece", async () => {
    const { stream } = await model().doStream({ prompt: PROMPT });
    const reader = stream.getReader();
    const pieces: string[] = [];
    for (let read = await reader.read(); !read.done; read = await reader.read()) {
      if (read.value.type === "reasoning-delta") pieces.push(read.value.delta);
    }
    expect(pieces).toEqual(["The", " quick", " brown", " fox"]);
  });

  it("shows the thoughts of a blocking answer", async () => {
    const { content } = await model().doGenerate({ prompt: PROMPT });
    const shown = content.flatMap((part) => (part.type === "reasoning" ? [part.text] : []));
    expect(shown).toEqual([THOUGHT]);
  });
});

it("is known to the gateway by what it calls itself, since it sends no version header", async () => {
  await open("m").doGenerate({ prompt: PROMPT });
  expect(agents.at(-1)).toContain("ai-sdk/open-responses/");
});
