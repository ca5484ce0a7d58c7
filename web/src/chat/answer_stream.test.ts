import { beforeEach, describe, expect, it, vi } from "vitest";
import type { ApiClient } from "../api/client";
import { ApiError, NetworkError, readError } from "../api/errors";
import { EventParser } from "../api/sse";
import { applyEvent, EMPTY_ANSWER } from "./answer";
import { AnswerStream } from "./answer_stream";

const TEXT = "ü 世 🦊.";

/** A stream as the gateway writes it: what it waits for, thoughts, a text with characters of 1 to 4 bytes, a heartbeat. */
function recorded(): Uint8Array<ArrayBuffer> {
  const message = { id: "msg_1", type: "message", role: "assistant", status: "in_progress", content: [] };
  const done = { ...message, status: "completed", content: [{ type: "output_text", text: TEXT, annotations: [] }] };
  const thought = {
    id: "rs_1",
    type: "reasoning",
    status: "completed",
    content: [{ type: "reasoning_text", text: "Hm" }],
  };
  const events = [
    { type: "response.created", response: { id: "resp_1", model: "m" } },
    { type: "response.output_item.added", output_index: 0, item: { ...thought, content: [] } },
    { type: "response.reasoning.delta", output_index: 0, content_index: 0, delta: "Hm" },
    { type: "response.output_item.done", output_index: 0, item: thought },
    { type: "response.output_item.added", output_index: 1, item: message },
    ...[...TEXT].map((delta) => ({ type: "response.output_text.delta", output_index: 1, content_index: 0, delta })),
    { type: "response.output_item.done", output_index: 1, item: done },
    {
      type: "response.completed",
      response: { id: "resp_1", model: "m", status: "completed", output: [thought, done] },
    },
  ];
  const blocks = events.map((event) => `event: ${event.type}\ndata: ${JSON.stringify(event)}\n\n`);
  blocks.splice(7, 0, ": ka\n\n");
  return new TextEncoder().encode(`: progress {"stage":"queue","model":"m","queue_position":2}\n\n${blocks.join("")}`);
}

const BYTES = recorded();
const WHOLE = [...new EventParser().push(BYTES)].reduce(applyEvent, EMPTY_ANSWER);

/** A body that gives `bytes` and then ends, or breaks. */
function body(bytes: Uint8Array<ArrayBuffer>, breaks: boolean): ReadableStream {
  const pieces = bytes.length > 0 ? [bytes] : [];
  return new ReadableStream({
    pull(controller) {
      const piece = pieces.shift();
      if (piece !== undefined) controller.enqueue(piece);
      else if (breaks) controller.error(new TypeError("network error"));
      else controller.close();
    },
  });
}

type Step = (from: number) => Response | Error;

const cutAt =
  (end: number): Step =>
  (from) =>
    new Response(body(BYTES.slice(from, end), true));
const toEnd: Step = (from) => new Response(body(BYTES.slice(from), false), { headers: { "x-stream-state": "done" } });
const offline: Step = () => new NetworkError();
const refused =
  (code: string, status: number): Step =>
  () =>
    readError({ error: { code, message: `It is ${code}.`, next_steps: ["Wait."] } }, status);

/** A client that takes one step for each request of the stream, and the requests that it was sent. */
function clientOf(steps: Step[]) {
  const requests: string[] = [];
  const take = (_: string, options: { query?: { from: number }; method?: string; body?: unknown }) => {
    const from = options.query?.from ?? 0;
    requests.push(options.body === undefined ? `GET from ${from}` : "POST");
    const result = (steps.shift() ?? toEnd)(from);
    return result instanceof Error ? Promise.reject(result) : Promise.resolve(result);
  };
  const request = (_: string, { method }: { method?: string }) => {
    requests.push(method ?? "GET");
    return Promise.resolve(null);
  };
  return { client: { fetch: vi.fn(take), request: vi.fn(request) } as unknown as ApiClient, requests };
}

/** Returns a stream that tries again at once where it would wait. */
function impatient(client: ApiClient): AnswerStream {
  const stream = new AnswerStream(client, "page/conv_1::1");
  stream.subscribe(() => {
    const { state, answer } = stream.snapshot;
    const waits = state === "reconnecting" || answer.progress?.stage === "load";
    if (waits) queueMicrotask(() => dispatchEvent(new Event("online")));
  });
  return stream;
}

describe("AnswerStream", () => {
  beforeEach(() => {
    expect(WHOLE.status).toBe("completed");
  });

  it("goes on after a cut at any byte", async () => {
    for (let end = 0; end <= BYTES.length; end += 1) {
      const { client, requests } = clientOf([cutAt(end), toEnd]);
      const stream = impatient(client);
      await stream.start({ model: "m" });
      expect(stream.snapshot.answer).toEqual(WHOLE);
      expect(stream.bytesRead).toBe(BYTES.length);
      // A break after the last event costs nothing but the news of it.
      expect(requests).toEqual(["POST", `GET from ${end}`]);
    }
  }, 60_000);

  it("reads each byte once over many cuts and refused connections", async () => {
    const ends = Array.from({ length: 40 }, (_, index) => (index + 1) * 30);
    const steps = ends.flatMap((end) => [cutAt(end), offline, refused("gateway_stopping", 503)]);
    const stream = impatient(clientOf([...steps, toEnd]).client);
    await stream.attach();
    expect(stream.snapshot.answer).toEqual(WHOLE);
  });

  it("sends the request again only if it never arrived", async () => {
    const { client, requests } = clientOf([offline, refused("stream_not_found", 404), offline, toEnd]);
    await impatient(client).start({ model: "m" });
    expect(requests).toEqual(["POST", "GET from 0", "POST", "GET from 0"]);
  });

  it("waits with the request while the model loads", async () => {
    const { client, requests } = clientOf([refused("model_loading", 503), toEnd]);
    const stream = impatient(client);
    await stream.start({ model: "m" });
    expect(requests).toEqual(["POST", "POST"]);
    expect(stream.snapshot.answer).toEqual(WHOLE);
  });

  it("throws what refuses the request", async () => {
    const { client } = clientOf([refused("queue_full", 429)]);
    await expect(impatient(client).start({})).rejects.toBeInstanceOf(ApiError);
  });

  it("is lost with what it has where the gateway knows the stream no longer", async () => {
    const stream = impatient(clientOf([cutAt(600), refused("stream_not_found", 404)]).client);
    await stream.start({});
    expect(stream.snapshot.state).toBe("lost");
    expect(stream.snapshot.answer.status).toBe("failed");
    expect(stream.snapshot.answer.error?.nextSteps).toEqual(["Wait."]);
  });

  it("is lost where a stream that has ended lacks its last event", async () => {
    const cut: Step = (from) =>
      new Response(body(BYTES.slice(from, 600), false), { headers: { "x-stream-state": "cut" } });
    const stream = impatient(clientOf([cut]).client);
    await stream.attach();
    expect(stream.snapshot.state).toBe("lost");
  });

  it("stops as soon as the gateway is back", async () => {
    const { client, requests } = clientOf([cutAt(500), toEnd]);
    const stream = impatient(client);
    vi.mocked(client.request).mockRejectedValueOnce(new NetworkError());
    stream.subscribe(() => stream.snapshot.state === "reconnecting" && requests.length === 1 && void stream.stop());
    await stream.start({});
    expect(requests).toEqual(["POST", "DELETE", "GET from 500"]);
  });
});
