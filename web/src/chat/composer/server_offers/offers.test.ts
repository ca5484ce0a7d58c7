import { describe, expect, it } from "vitest";
import { ApiClient } from "../../../api/client";
import { getPrompt, type ListedServer, offersOf, searchOffers } from "./offers";

const ASK = {
  name: "ask/a b",
  description: "Asks for the weather",
  arguments: [
    { name: "city", description: "", required: true },
    { name: "unit", description: "", required: false },
  ],
};
const NOTES = { uri: "notes://{day}", name: "notes", description: "", media_type: null, is_template: true };

function server(name: string, offered: Partial<ListedServer>): ListedServer {
  return {
    server: name,
    state: "connected",
    since: 0,
    tools: [],
    resources: [],
    prompts: [],
    reason: null,
    ...offered,
  };
}

describe("offersOf", () => {
  it("leaves out servers that offer tools alone, and keeps those that are down", () => {
    const listed = [
      server("tools", { tools: ["tools__a"] }),
      server("prompts", { prompts: [ASK] }),
      server("resources", { resources: [NOTES], state: "down" }),
    ];
    expect(offersOf(listed)).toEqual([
      { server: "prompts", isConnected: true, prompts: [ASK], resources: [] },
      { server: "resources", isConnected: false, prompts: [], resources: [NOTES] },
    ]);
  });
});

describe("searchOffers", () => {
  const offers = offersOf([server("desk", { prompts: [ASK], resources: [NOTES] })]);
  it.each([
    ["", 1, 1],
    ["WEATHER desk", 1, 0],
    ["notes://", 0, 1],
    ["desk", 1, 1],
  ])("finds by the words %j", (search, prompts, resources) => {
    const [found] = searchOffers(offers, search);
    expect([found?.prompts.length, found?.resources.length]).toEqual([prompts, resources]);
  });

  it("leaves out servers without anything that was found", () => {
    expect(searchOffers(offers, "snow")).toEqual([]);
  });
});

describe("getPrompt", () => {
  it("sends the name encoded, required arguments also if they are empty, and others if they are not", async () => {
    const sent: [string, unknown][] = [];
    const client = new ApiClient(() => null);
    client.request = async <T>(path: string, options?: { body?: unknown }) => {
      sent.push([path, options?.body]);
      return { messages: [] } as T;
    };
    const { signal } = new AbortController();
    await getPrompt(client, "desk", ASK, { unit: "K", other: "x" }, signal);
    await getPrompt(client, "desk", ASK, { city: "Bonn", unit: "" }, signal);
    const path = "/tools/servers/desk/prompts/ask%2Fa%20b";
    expect(sent).toEqual([
      [path, { arguments: { city: "", unit: "K" } }],
      [path, { arguments: { city: "Bonn" } }],
    ]);
  });
});
