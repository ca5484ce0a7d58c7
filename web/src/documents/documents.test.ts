import { expect, test } from "vitest";
import { attributesText, parseAttributes } from "./attributes";
import { chunkPlace, documentStatusText, progressShare, whyText } from "./document_words";
import type { Chunk, Document } from "./documents";

test("attributes are read as a file would say them", () => {
  expect(parseAttributes(' project=yard, year = 2024,draft=false, id="007", url=a=b,')).toEqual({
    project: "yard",
    year: 2024,
    draft: false,
    id: "007",
    url: "a=b",
  });
  expect(parseAttributes("")).toEqual({});
  expect(() => parseAttributes("yard")).toThrow("key=value");
  expect(() => parseAttributes("=yard")).toThrow("key=value");
  expect(attributesText({ project: "yard", years: [2023, 2024] })).toBe("project=yard, years=[2023,2024]");
});

const DOCUMENT = { status: "ready", chunks: 4, progress: null, error: null } as Document;

test("a document's status says how far it is, and when it is tried again", () => {
  expect(documentStatusText(DOCUMENT, 0)).toBe("ready, 4 chunks");
  const embedding: Document = { ...DOCUMENT, status: "embedding", progress: { chunks: 12, chunks_total: 40 } };
  expect([documentStatusText(embedding, 0), progressShare(embedding)]).toEqual(["embedding, 12 of 40 chunks", 0.3]);
  const parsing: Document = { ...DOCUMENT, status: "parsing", progress: { chunks: 0, chunks_total: null } };
  expect([documentStatusText(parsing, 0), progressShare(parsing)]).toEqual(["parsing", null]);
  const waits: Document = { ...DOCUMENT, status: "queued", error: { code: "x", message: "y", retry_at: 104 } };
  expect([documentStatusText(waits, 100), documentStatusText(waits, 200)]).toEqual([
    "waits, and is tried again in 4 s",
    "waits, and is tried again now",
  ]);
});

test("a chunk says where it is and what it repeats", () => {
  const chunk: Chunk = { index: 1, start: 80, end: 200, text: "", headings: [], page: 2 };
  expect(chunkPlace(chunk, { ...chunk, start: 0, end: 100 })).toBe(
    "bytes 80 to 200, page 2, repeats 20 bytes of the one before",
  );
  expect(chunkPlace({ ...chunk, page: null }, null)).toBe("bytes 80 to 200");
});

test("why a hit was found", () => {
  expect(whyText({ sparse: 0.54617, sparse_rank: 2, dense: 0.7, dense_rank: 1, rerank: -3 })).toBe(
    "place 2 by words (BM25 0.546), place 1 by meaning (cosine 0.700), reranked to -3.00",
  );
  expect(whyText({ sparse: 1, sparse_rank: null, dense: null, dense_rank: null, rerank: null })).toBe(
    "by words (BM25 1.00)",
  );
});
