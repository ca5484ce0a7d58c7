/**
 * An answer that is read from a resumable stream: whatever happens to the connection, the next one goes on at the byte
 * where the last one ended (docs/streams.md).
 */
import type { ApiClient } from "../api/client";
import { ApiError, NetworkError } from "../api/errors";
import { EventParser } from "../api/sse";
import { type Answer, type AnswerError, applyEvent, EMPTY_ANSWER, failAnswer, STOPPED } from "./answer";
import { type ItemTimes, noteTimes } from "./figures";
import { NO_PACE, notePace, type TokenPace } from "./token_pace";

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
  /** How fast it comes. */
  pace: TokenPace;
  /** Set while the request waits here, because the gateway has refused it for the moment. */
  retry: Retry | null;
}

/** A request that is made again by itself. Times in milliseconds of `performance.now()`. */
export interface Retry {
  /** Why the gateway has refused it. */
  message: string;
  /** When it was refused first. */
  since: number;
  /** When it is made again. */
  at: number;
  /** When the waiting ends: a refusal after that is the answer's error. */
  until: number;
}

const NOTHING_READ: StreamSnapshot = {
  answer: EMPTY_ANSWER,
  state: "connected",
  requestedAt: null,
  startedAt: null,
  endedAt: null,
  itemTimes: {},
  pace: NO_PACE,
  retry: null,
};

/** Delays between tries in milliseconds, the last one again and again. */
const DELAYS_MS = [250, 500, 1000, 2000, 5000];

/** A connection without a byte for so many milliseconds is given up: the gateway's heartbeats come every 10 s. */
const SILENCE_MS = 45_000;

/** The same for a page that is shown again, or a machine that wakes. */
const SILENCE_AWAY_MS = 12_000;

/** How long a request is made again by itself while the gateway refuses it, in milliseconds. */
const MOST_RETRY_MS = 600_000;

/** Refusals that end by themselves, soon: the queue is full, the key's limit is reached, the gateway is changing. */
const PASSING = new Set(["queue_full", "rate_limit_exceeded", "gateway_stopping", "gateway_restarted"]);

const CUT: AnswerError = { code: "stream_cut", message: "The stream of this answer has no end.", nextSteps: [] };

/** Whether the gateway has got the request for the answer. */
type Arrival = "none" | "unknown" | "arrived";

export class AnswerStream {
  readonly streamId: string;
  /** Whether this page requests the answer. */
  readonly isOwn: boolean;
  /** Id of the item that the answer follows; null: it begins a branch, or that is not known. */
  parentId: string | null = null;
  readonly #client: ApiClient;
  readonly #abort = new AbortController();
  readonly #listeners = new Set<() => void>();
  #snapshot = NOTHING_READ;
  #parser = new EventParser();
  #bytes = 0;
  #connection: AbortController | null = null;
  /** Of the pause before the request is made again, while it lasts. */
  #pause: AbortController | null = null;
  #lastByteAt = 0;
  #wantsStop = false;

  /** `streamId`: value of `X-Conversation-Id`, of no other answer. Nothing is requested before `start` or `attach`. */
  constructor(client: ApiClient, streamId: string, isOwn = true) {
    this.#client = client;
    this.streamId = streamId;
    this.isOwn = isOwn;
  }

  get snapshot(): StreamSnapshot {
    return this.#snapshot;
  }

  /** Bytes of the stream that were read; a reader that goes on begins there. */
  get bytesRead(): number {
    return this.#bytes;
  }

  /** Whether the answer has neither ended nor been lost. */
  get isRunning(): boolean {
    return isRunning(this.#snapshot);
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
    this.#change({ requestedAt: performance.now() });
    await this.#watched(() => this.#readToEnd(fields));
  }

  /** Reads a stream that another page, or this one before a reload, has started. Returns as `start`. */
  async attach(): Promise<void> {
    await this.#watched(() => this.#readToEnd(null));
  }

  /** Ends the answer without a stream: its request was refused, or could not be made. */
  refuse(error: AnswerError): void {
    this.#end("ended", error);
  }

  /** Stops the generation; while the gateway is away, as soon as it is back. The answer keeps what was read. */
  async stop(): Promise<void> {
    this.#wantsStop = true;
    if (this.#pause !== null) this.#pause.abort();
    else await this.#sendStop();
  }

  /** Ends the reading alone; the generation goes on. */
  close(): void {
    this.#abort.abort();
    this.#connection?.abort();
  }

  /** Reads the answer over as many connections as it takes. `fields`: null if the request has been made. */
  async #readToEnd(fields: Record<string, unknown> | null): Promise<void> {
    let arrival: Arrival = fields === null ? "arrived" : "none";
    for (let tries = 0; !this.#abort.signal.aborted; tries += 1) {
      const bytesBefore = this.#bytes;
      const isRequest = fields !== null && arrival === "none";
      try {
        if (this.#wantsStop && !isRequest) await this.#sendStop();
        const answer = await (isRequest ? this.#request(fields) : this.#resume());
        arrival = "arrived";
        if (this.#snapshot.retry !== null) this.#change({ retry: null });
        // Before the request arrived, there was no stream to stop.
        if (this.#wantsStop) await this.#sendStop();
        if (await this.#readBody(answer)) return;
      } catch (error) {
        if (this.#abort.signal.aborted) return;
        if (error instanceof ApiError) {
          const retryMs = isRequest ? this.#planRetry(error) : null;
          if (retryMs !== null) {
            if (await this.#wait(retryMs)) continue;
            return;
          }
          if (isRequest && error.fields.code !== "model_loading") throw error;
          const isUnknown = error.fields.status === 404;
          if (isUnknown && arrival === "unknown") arrival = "none";
          else if (!isTemporary(error)) return this.#end(isUnknown ? "lost" : "ended", describe(error));
          if (error.fields.code === "model_loading") {
            if (await this.#waitForLoad(fields, error)) continue;
            return;
          }
        } else if (!(error instanceof NetworkError)) throw error;
        else if (isRequest) {
          arrival = "unknown";
          this.#change({ retry: null });
        }
      }
      if (this.#wantsStop && arrival === "none") return this.#end("ended", STOPPED);
      if (this.#bytes > bytesBefore) tries = -1;
      this.#change({ state: "reconnecting" });
      const delayMs = DELAYS_MS[Math.min(Math.max(tries, 0), DELAYS_MS.length - 1)] ?? 5000;
      await waitFor(delayMs, this.#abort.signal, true);
    }
  }

  #request(fields: Record<string, unknown>): Promise<Response> {
    const headers = { "x-conversation-id": this.streamId, "x-progress": "true" };
    return this.#client.fetch("/v1/responses", { body: { ...fields, stream: true }, headers, signal: this.#connect() });
  }

  #resume(): Promise<Response> {
    return this.#client.fetch(streamPath(this.streamId), { query: { from: this.#bytes }, signal: this.#connect() });
  }

  /** Waits until the gateway may take the request. Returns false if the user stopped the answer meanwhile. */
  async #waitForLoad(fields: Record<string, unknown> | null, error: ApiError): Promise<boolean> {
    const model = typeof fields?.model === "string" ? fields.model : "the model";
    const answer = applyEvent(this.#snapshot.answer, loadProgress(model));
    this.#change({ state: "connected", answer });
    return this.#wait((error.fields.retryAfterS ?? 1) * 1000);
  }

  /** Returns in how many milliseconds a refused request is made again; null: it is not, for the refusal lasts, or too long. */
  #planRetry({ message, fields: { code, retryAfterS } }: ApiError): number | null {
    const now = performance.now();
    const { since, until } = this.#snapshot.retry ?? { since: now, until: now + MOST_RETRY_MS };
    const delayMs = PASSING.has(code) && retryAfterS !== null ? retryAfterS * 1000 : Number.POSITIVE_INFINITY;
    const isPlanned = now + delayMs <= until;
    this.#change({ retry: isPlanned ? { message, since, at: now + delayMs, until } : null });
    return isPlanned ? delayMs : null;
  }

  /** Waits so long, or until `stop` or `close`. Returns false if the user stopped the answer before or meanwhile. */
  async #wait(delayMs: number): Promise<boolean> {
    if (!this.#wantsStop) {
      // Not the connection's: there is none, and its silence ends no pause.
      this.#pause = new AbortController();
      await waitFor(delayMs, AbortSignal.any([this.#abort.signal, this.#pause.signal]), false);
      this.#pause = null;
    }
    if (this.#wantsStop) this.#end("ended", STOPPED);
    return !this.#wantsStop && !this.#abort.signal.aborted;
  }

  async #sendStop(): Promise<void> {
    try {
      await this.#client.request(streamPath(this.streamId), { method: "DELETE" });
    } catch (error) {
      // Without a connection it is sent again before the stream is read on. Without a stream there is nothing to stop.
      if (!(error instanceof NetworkError || error instanceof ApiError)) throw error;
      return;
    }
    this.#wantsStop = false;
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
        this.#take(value);
      }
    } catch {
      return false;
    }
    if (this.#snapshot.answer.status === "running") {
      // The body of a live stream was cut on its way: the gateway ends each with a last event.
      const isLive = (answer.headers.get("x-stream-state") ?? "live") === "live";
      if (isLive) return false;
      this.#end("lost", CUT);
    } else this.#end("ended", null);
    return true;
  }

  #take(bytes: Uint8Array): void {
    this.#bytes += bytes.byteLength;
    this.#lastByteAt = Date.now();
    let answer = this.#snapshot.answer;
    for (const event of this.#parser.push(bytes)) answer = applyEvent(answer, event);
    if (answer.parentId !== undefined) this.parentId = answer.parentId;
    const now = performance.now();
    this.#change({
      answer,
      startedAt: this.#snapshot.startedAt ?? (answer.items.length > 0 ? now : null),
      pace: notePace(this.#snapshot.pace, answer.pieces, now),
      itemTimes: noteTimes(this.#snapshot.itemTimes, answer.items, now, answer.status !== "running"),
    });
  }

  /** Returns the signal of a new connection. */
  #connect(): AbortSignal {
    this.#connection = new AbortController();
    this.#lastByteAt = Date.now();
    return this.#connection.signal;
  }

  /** Gives a connection up that has been silent for longer than it may: after a sleep, nothing tells that it is dead. */
  #checkSilence(allowedMs: number): void {
    if (Date.now() - this.#lastByteAt >= allowedMs) this.#connection?.abort(new NetworkError());
  }

  async #watched(read: () => Promise<void>): Promise<void> {
    const check = () => this.#checkSilence(SILENCE_MS);
    const checkNow = () => this.#checkSilence(0);
    const checkShown = () => document.visibilityState === "visible" && this.#checkSilence(SILENCE_AWAY_MS);
    const timer = setInterval(check, SILENCE_MS / 3);
    addEventListener("online", checkNow);
    document.addEventListener("visibilitychange", checkShown);
    try {
      await read();
    } finally {
      clearInterval(timer);
      removeEventListener("online", checkNow);
      document.removeEventListener("visibilitychange", checkShown);
    }
  }

  #end(state: "ended" | "lost", error: AnswerError | null): void {
    const before = this.#snapshot.answer;
    const answer = error === null ? before : failAnswer(before, error);
    this.#change({ answer, state, endedAt: performance.now(), retry: null });
  }

  #change(changed: Partial<StreamSnapshot>): void {
    this.#snapshot = { ...this.#snapshot, ...changed };
    for (const listener of this.#listeners) listener();
  }
}

/** Returns whether an answer has neither ended nor been lost. */
export function isRunning({ answer, state }: StreamSnapshot): boolean {
  return answer.status === "running" && state !== "lost";
}

/** Returns the path of a resumable stream. */
export function streamPath(streamId: string): string {
  return `/v1/stream/${streamId.split("/").map(encodeURIComponent).join("/")}`;
}

/** Returns what the page shows of an error that kept an answer from being made. */
export function describe(error: unknown): AnswerError {
  if (error instanceof ApiError) {
    return { code: error.fields.code, message: error.message, nextSteps: error.fields.nextSteps };
  }
  return { code: "unknown", message: error instanceof Error ? error.message : String(error), nextSteps: [] };
}

/** The event by which a stream tells that it waits for a load. */
function loadProgress(model: string) {
  return { event: "", data: "", comment: `progress ${JSON.stringify({ stage: "load", model })}` };
}

function isTemporary(error: ApiError): boolean {
  const { code, status } = error.fields;
  return code === "model_loading" || status === 429 || status >= 500;
}

/** Waits until the time is over, the signal is set off or, with `endsOnline`, the network is back: what comes first. */
function waitFor(delayMs: number, signal: AbortSignal, endsOnline: boolean): Promise<void> {
  return new Promise((resolve) => {
    const finish = () => {
      clearTimeout(timer);
      removeEventListener("online", finish);
      signal.removeEventListener("abort", finish);
      resolve();
    };
    const timer = setTimeout(finish, delayMs);
    if (endsOnline) addEventListener("online", finish);
    signal.addEventListener("abort", finish);
  });
}
