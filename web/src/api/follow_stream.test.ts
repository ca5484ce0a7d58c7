import { expect, test, vi } from "vitest";
import { ApiClient } from "./client";
import { followStream } from "./follow_stream";

function streamOf(...texts: string[]): Response {
  return new Response(
    new ReadableStream({
      start(controller) {
        for (const text of texts) controller.enqueue(new TextEncoder().encode(text));
        controller.close();
      },
    }),
  );
}

test("a stream that ends is followed from the last id on, with the key, and never by the address", async () => {
  vi.useFakeTimers();
  const stop = new AbortController();
  const seen: string[] = [];
  const answers = [streamOf("id: 7\ndata: a\n\n: ka\n\n"), streamOf("data: b\n\n")];
  const asked: [string, Headers][] = [];
  vi.stubGlobal("fetch", async (path: string, init: RequestInit) => {
    asked.push([path, new Headers(init.headers)]);
    const answer = answers.shift();
    if (answer !== undefined) return answer;
    stop.abort();
    throw new TypeError("away");
  });
  let last: number | null = null;
  const following = followStream(new ApiClient(() => "secret"), {
    path: "/v1/admin/events",
    query: { kind: "state" },
    readLastId: () => last,
    onEvent: (event) => {
      seen.push(event.data);
      last = 7;
    },
    signal: stop.signal,
  });
  await vi.runAllTimersAsync();
  await following;
  expect(seen).toEqual(["a", "b"]);
  expect(asked.map(([path]) => path)).toEqual(Array(3).fill("/v1/admin/events?kind=state"));
  expect(asked.map(([, headers]) => headers.get("last-event-id"))).toEqual([null, "7", "7"]);
  expect(asked.map(([, headers]) => headers.get("authorization"))).toEqual(Array(3).fill("Bearer secret"));
  vi.useRealTimers();
  vi.unstubAllGlobals();
});

test("a refusal is told and not asked again", async () => {
  const envelope = { error: { message: "No.", code: "scope_required", status: 403, next_steps: [] } };
  const fetched = vi.fn(async () => new Response(JSON.stringify(envelope), { status: 403 }));
  vi.stubGlobal("fetch", fetched);
  const told: (string | null)[] = [];
  await followStream(new ApiClient(() => null), {
    path: "/v1/admin/events",
    onEvent: () => {},
    onState: (error) => told.push(error?.message ?? null),
    signal: new AbortController().signal,
  });
  expect([told, fetched.mock.calls.length]).toEqual([["No."], 1]);
  vi.unstubAllGlobals();
});
