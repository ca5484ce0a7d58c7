/**
 * An answer that is read from a resumable stream: whatever happens to the connection, the next one goes on at the byte
 * where the last one ended (docs/streams.md).
 */
import type { ApiClient } from "../api/client";
import { ApiError, NetworkError } from "../api/errors";
import { EventParser } from "../api/sse";
import { type Answer, applyEvent, EMPTY_ANSWER } from "./answer";
import { type ItemTimes, noteTimes } from "./figures";

export type StreamState =
  /** Bytes come, or the answer waits in the queue or for its load. */
  | "connected"
  /** The connection broke; the next try is under way, or waits for the network. */
  | "reconnecting"
  /** The stream ended; `answer.status` says how. */
  | "ended"
  /** The stream is gone: the gateway kept it no longer. The answer is what was read until then. */
  | "lost";

export interface StreamSnapshot {
  answer: Answer;
  state: StreamState;
  /** Times in milliseconds of `performance.now()`. When this page requested the answer; null: another page did. */
  requestedAt: number | null;
  /** When its first item came; null before. */
  startedAt: number | null;
  endedAt: number | null;
  itemTimes: ItemTimes;
}

const NOTHING_READ: StreamSnapshot = {
  answer: EMPTY_ANSWER,
  state: "connected",
  requestedAt: null,
  startedAt: null,
  endedAt: null,
  itemTimes: {},
};

/** Delays between tries in milliseconds, the last one again and again. */
const DELAYS_MS = [250, 500, 1000, 2000, 5000];

export class AnswerStream {
  readonly streamId: string;
  readonly #client: ApiClient;
  readonly #abort = new AbortController();
  readonly #listeners = new Set<() => void>();
  #snapshot = NOTHING_READ;
  #parser = new EventParser();
  #bytes = 0;

  /** `streamId`: value of `X-Conversation-Id`. Nothing is requested before `start` or `attach`. */
  constructor(client: ApiClient, streamId: string) {
    this.#client = client;
    this.streamId = streamId;
  }

  get snapshot(): StreamSnapshot {
    return this.#snapshot;
  }

  /** Bytes of the stream that were read; a reader that goes on begins there. */
  get bytesRead(): number {
    return this.#bytes;
  }

  /** Calls `listener` after each change, until the returned function is called. */
  subscribe = (listener: () => void): (() => void) => {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  };

  /**
   * Requests a response with these fields and reads it to its end. Returns when the stream has ended or is lost.
   * Throws ApiError if the request was refused: then there is no answer.
   */
  async start(fields: Record<string, unknown>): Promise<void> {
    const headers = { "x-conversation-id": this.streamId, "x-progress": "true" };
    const request = { body: { ...fields, stream: true }, headers, signal: this.#abort.signal };
    this.#change({ requestedAt: performance.now() });
    let answer: Response;
    try {
      answer = await this.#client.fetch("/v1/responses", request);
    } catch (error) {
      // The request may have arrived before the connection broke. If so there is a stream of this id.
      if (!(error instanceof NetworkError)) throw error;
      this.#change({ state: "reconnecting" });
      await this.#readOn();
      return;
    }
    if (!(await this.#readBody(answer))) await this.#readOn();
  }

  /** Reads a stream that another page, or this one before a reload, has started. Returns as `start`. */
  async attach(): Promise<void> {
    await this.#readOn();
  }

  /** Stops the generation. The answer keeps what was read. */
  async stop(): Promise<void> {
    await this.#client.request(streamPath(this.streamId), { method: "DELETE" });
  }

  /** Ends the reading alone; the generation goes on. */
  close(): void {
    this.#abort.abort();
  }

  async #readOn(): Promise<void> {
    for (let tries = 0; ; tries += 1) {
      try {
        const query = { from: this.#bytes };
        const answer = await this.#client.fetch(streamPath(this.streamId), { query, signal: this.#abort.signal });
        const before = this.#bytes;
        if (await this.#readBody(answer)) return;
        if (this.#bytes > before) tries = -1;
      } catch (error) {
        if (this.#abort.signal.aborted) return;
        if (error instanceof ApiError && !isTemporary(error)) {
          this.#end(error.fields.status === 404 ? "lost" : "ended", error);
          return;
        }
        if (!(error instanceof NetworkError || error instanceof ApiError)) throw error;
      }
      this.#change({ state: "reconnecting" });
      await waitForRetry(DELAYS_MS[Math.min(Math.max(tries, 0), DELAYS_MS.length - 1)] ?? 5000, this.#abort.signal);
      if (this.#abort.signal.aborted) return;
    }
  }

  /** Reads a body to its end. Returns whether the stream ended with it; false: the connection broke. */
  async #readBody(answer: Response): Promise<boolean> {
    const reader = answer.body?.getReader();
    if (reader === undefined) return false;
    this.#change({ state: "connected" });
    try {
      for (;;) {
        const { done, value } = await reader.read();
        if (done) break;
        this.#bytes += value.byteLength;
        let next = this.#snapshot.answer;
        for (const event of this.#parser.push(value)) next = applyEvent(next, event);
        const now = performance.now();
        const itemTimes = noteTimes(this.#snapshot.itemTimes, next.items, now, next.status !== "running");
        this.#change({
          answer: next,
          startedAt: this.#snapshot.startedAt ?? (next.items.length > 0 ? now : null),
          itemTimes,
        });
      }
    } catch {
      return this.#abort.signal.aborted;
    }
    // A body that ends without the answer's last event was cut on its way: the gateway ends each with one.
    if (this.#snapshot.answer.status === "running") return false;
    this.#end("ended", null);
    return true;
  }

  #end(state: "ended" | "lost", error: ApiError | null): void {
    const failure = error === null ? null : { code: error.fields.code, message: error.message };
    const before = this.#snapshot.answer;
    const answer: Answer =
      failure === null ? before : { ...before, status: "failed", progress: null, error: before.error ?? failure };
    this.#change({ answer, state, endedAt: performance.now() });
  }

  #change(changed: Partial<StreamSnapshot>): void {
    this.#snapshot = { ...this.#snapshot, ...changed };
    for (const listener of this.#listeners) listener();
  }
}

/** Returns the path of a resumable stream. */
export function streamPath(streamId: string): string {
  return `/v1/stream/${streamId.split("/").map(encodeURIComponent).join("/")}`;
}

function isTemporary(error: ApiError): boolean {
  const { code, status } = error.fields;
  return code === "model_loading" || status === 429 || status >= 500;
}

/** Waits until the time is over, or the network is back: what comes first. */
function waitForRetry(delayMs: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const finish = () => {
      clearTimeout(timer);
      removeEventListener("online", finish);
      signal.removeEventListener("abort", finish);
      resolve();
    };
    const timer = setTimeout(finish, delayMs);
    addEventListener("online", finish);
    signal.addEventListener("abort", finish);
  });
}
