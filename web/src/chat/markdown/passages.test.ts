import { afterEach, describe, expect, it, vi } from "vitest";
import { ApiClient } from "../../api/client";
import { type Source, sourcesOf } from "./citations";
import { readPassage } from "./passages";

const TEXT = "# Öfen\n\nCoal is stored beside the shed.\n";
const SOURCE: Source = {
  number: 1,
  documentId: "file-1",
  filename: "coal.md",
  page: null,
  chunk: 0,
  bytes: { start: 9, end: 40 },
};

/** Answers requests by their paths, and any other with 404. Returns the paths that were asked for. */
function serve(answers: Record<string, unknown>): string[] {
  const asked: string[] = [];
  vi.stubGlobal("fetch", async (path: string) => {
    asked.push(path);
    const found = answers[path];
    return new Response(JSON.stringify(found ?? { error: { message: "gone", code: "not_found" } }), {
      status: found === undefined ? 404 : 200,
    });
  });
  return asked;
}

afterEach(() => vi.unstubAllGlobals());

describe("readPassage", () => {
  const client = new ApiClient(() => null);

  it("reads a document's chunk", async () => {
    const asked = serve({ "/v1/documents/a%20b/chunks?limit=1&after=2": { data: [{ text: "The fourth." }] } });
    const source = { ...SOURCE, documentId: "a b", chunk: 3 };
    expect(await readPassage(client, source)).toBe("The fourth.");
    expect(asked).toHaveLength(1);
  });

  it("cuts a passage out of a file by its bytes, in the vector store that has the file", async () => {
    serve({
      "/v1/vector_stores?limit=100": { data: [{ id: "vs_1" }, { id: "vs_2" }] },
      "/v1/vector_stores/vs_2/files/file-1/content": { data: [{ text: TEXT }] },
    });
    expect(await readPassage(client, SOURCE)).toBe("Coal is stored beside the shed.");
  });

  it("finds nothing of what was deleted", async () => {
    serve({ "/v1/vector_stores?limit=100": { data: [{ id: "vs_1" }] } });
    expect(await readPassage(client, SOURCE)).toBeNull();
  });

  it("fails where the gateway does", async () => {
    vi.stubGlobal("fetch", async () => new Response("{}", { status: 503 }));
    await expect(readPassage(client, SOURCE)).rejects.toThrow("503");
  });
});

it("knows where a passage is from", () => {
  const cited = { type: "file_citation", file_id: "file-1", number: 2, chunk: 4, page: 7, start: 10, end: 20 };
  expect(sourcesOf([cited, { type: "url_citation" }])).toEqual(
    new Map([
      [2, { number: 2, documentId: "file-1", filename: "file-1", page: 7, chunk: 4, bytes: { start: 10, end: 20 } }],
    ]),
  );
});
