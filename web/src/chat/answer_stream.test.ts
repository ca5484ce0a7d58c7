import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
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
    { type: "response.reasoning_text.delta", output_index: 0, content_index: 0, delta: "Hm" },
    { type: "response.reasoning_summary_text.delta", output_index: 0, summary_index: 0, delta: "Hm" },
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
  (code: string, status: number, retryAfter: string | null = null): Step =>
  () =>
    readError({ error: { code, message: `It is ${code}.`, next_steps: ["Wait."] } }, status, retryAfter);

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
    const { state, answer, retry } = stream.snapshot;
    const waits = state === "reconnecting" || answer.progress?.stage === "load" || retry !== null;
    if (waits)
      queueMicrotask(() => (vi.isFakeTimers() ? vi.runOnlyPendingTimers() : dispatchEvent(new Event("online"))));
  });
  return stream;
}

describe("AnswerStream", () => {
  beforeEach(() => {
    expect(WHOLE.status).toBe("completed");
  });

  afterEach(() => {
    vi.useRealTimers();
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
    vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout"] });
    const { client, requests } = clientOf([refused("model_loading", 503), toEnd]);
    const stream = impatient(client);
    await stream.start({ model: "m" });
    expect(requests).toEqual(["POST", "POST"]);
    expect(stream.snapshot.answer).toEqual(WHOLE);
  });

  it("throws what refuses the request for good, or for longer than anyone waits", async () => {
    const steps = [refused("model_failed", 503, "5"), refused("rate_limit_exceeded", 429, "3600")];
    for (const step of steps) {
      const { client, requests } = clientOf([step]);
      await expect(impatient(client).start({})).rejects.toBeInstanceOf(ApiError);
      expect(requests).toEqual(["POST"]);
    }
  });

  it("asks a full queue again when it says, and says when", async () => {
    vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout"] });
    const { client, requests } = clientOf([refused("queue_full", 429, "7"), refused("queue_full", 429, "2"), toEnd]);
    const stream = impatient(client);
    const seen: number[] = [];
    stream.subscribe(() => {
      const { retry } = stream.snapshot;
      if (retry !== null) seen.push(Math.round((retry.at - performance.now()) / 1000));
    });
    await stream.start({ model: "m" });
    expect(requests).toEqual(["POST", "POST", "POST"]);
    expect(seen).toEqual([7, 2]);
    expect(stream.snapshot).toMatchObject({ answer: WHOLE, retry: null });
  });

  it("stops while it waits for a full queue, and asks no more", async () => {
    const { client, requests } = clientOf([refused("queue_full", 429, "7")]);
    const stream = new AnswerStream(client, "page/conv_1::1");
    stream.subscribe(() => stream.snapshot.retry !== null && queueMicrotask(() => void stream.stop()));
    await stream.start({ model: "m" });
    expect(requests).toEqual(["POST"]);
    expect(stream.snapshot).toMatchObject({
      answer: { status: "failed", error: { code: "stream_stopped" } },
      retry: null,
    });
  });

  it("waits for a full queue as long as it says, whatever happens to the page and the network", async () => {
    vi.useFakeTimers();
    const { client, requests } = clientOf([refused("queue_full", 429, "300"), toEnd]);
    const stream = new AnswerStream(client, "page/conv_1::1");
    const reading = stream.start({});
    for (let minutes = 1; minutes < 5; minutes += 1) {
      await vi.advanceTimersByTimeAsync(60_000);
      document.dispatchEvent(new Event("visibilitychange"));
      dispatchEvent(new Event("online"));
    }
    await vi.advanceTimersByTimeAsync(59_000);
    expect(requests).toEqual(["POST"]);
    await vi.advanceTimersByTimeAsync(2000);
    await reading;
    expect(requests).toEqual(["POST", "POST"]);
    expect(stream.snapshot.answer).toEqual(WHOLE);
  });

  it("stops what is asked for again, once it has arrived", async () => {
    vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout"] });
    let stopped: Promise<void> | null = null;
    const stopsMeanwhile: Step = (from) => {
      // Nothing has arrived, so there is nothing to stop yet.
      stopped = stream.stop();
      return toEnd(from);
    };
    const { client, requests } = clientOf([refused("queue_full", 429, "7"), stopsMeanwhile]);
    vi.mocked(client.request).mockRejectedValueOnce(readError({ error: { code: "stream_not_found" } }, 404, null));
    const stream = impatient(client);
    await stream.start({});
    await stopped;
    expect(requests).toEqual(["POST", "POST", "DELETE"]);
    expect(client.request).toHaveBeenCalledTimes(2);
    expect(stream.snapshot).toMatchObject({ state: "ended", answer: WHOLE, retry: null });
  });

  it("ends what is refused again after it was stopped", async () => {
    vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout"] });
    const full = refused("queue_full", 429, "7");
    const { client, requests } = clientOf([
      full,
      (from) => {
        void stream.stop();
        return full(from);
      },
    ]);
    vi.mocked(client.request).mockRejectedValue(readError({ error: { code: "stream_not_found" } }, 404, null));
    const stream = impatient(client);
    await stream.start({});
    expect(requests).toEqual(["POST", "POST"]);
    expect(stream.snapshot).toMatchObject({ answer: { error: { code: "stream_stopped" } }, retry: null });
  });

  it("tells of no refusal once the connection breaks", async () => {
    vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout"] });
    const { client } = clientOf([refused("queue_full", 429, "7"), offline, toEnd]);
    const stream = impatient(client);
    const seen: boolean[] = [];
    stream.subscribe(() => stream.snapshot.state === "reconnecting" && seen.push(stream.snapshot.retry !== null));
    await stream.start({});
    expect(seen).toEqual([false]);
  });

  it("is lost with what it has where the gateway knows the stream no longer", async () => {
    const stream = impatient(clientOf([cutAt(600), refused("stream_not_found", 404)]).client);
    await stream.start({});
    expect(stream.snapshot.state).toBe("lost");
    expect(stream.snapshot.answer.status).toBe("failed");
    expect(stream.snapshot.answer.error?.nextSteps).toEqual(["Send the message again: this answer is no longer kept."]);
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
