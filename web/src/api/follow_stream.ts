/** Following a stream of server-sent events by `fetch`, which sends the key, as `EventSource` cannot. */
import type { ApiClient } from "./client";
import { ApiError } from "./errors";
import { EventParser, type ServerEvent } from "./sse";

export interface FollowOptions {
  path: string;
  query?: Record<string, string | number | boolean | null | undefined>;
  /** Returns the id after which the stream goes on; null: from now on. Asked for each connection. */
  readLastId?: () => number | string | null;
  onEvent: (event: ServerEvent) => void;
  /** Told when the stream is connected (null), and why it is not. */
  onState?: (error: Error | null) => void;
  signal: AbortSignal;
}

const FIRST_DELAY_MS = 500;
const LONGEST_DELAY_MS = 10_000;

/**
 * Follows until the signal is aborted, over ends of the stream and of the gateway. Ends early where the gateway refuses the
 * request itself (a status of 400 to 499, except 408 and 429): the same request would be refused again.
 */
export async function followStream(client: ApiClient, options: FollowOptions): Promise<void> {
  let delay = FIRST_DELAY_MS;
  while (!options.signal.aborted) {
    try {
      const wasConnected = await readOnce(client, options);
      if (wasConnected) delay = FIRST_DELAY_MS;
    } catch (error) {
      if (options.signal.aborted) return;
      options.onState?.(error instanceof Error ? error : new Error(String(error)));
      if (isFinal(error)) return;
    }
    await pause(delay, options.signal);
    delay = Math.min(delay * 2, LONGEST_DELAY_MS);
  }
}

/** Returns whether any event came. Throws what the client throws. */
async function readOnce(client: ApiClient, { path, query, readLastId, onEvent, onState, signal }: FollowOptions) {
  const id = readLastId?.() ?? null;
  const answer = await client.fetch(path, {
    query: query ?? {},
    headers: id === null ? {} : { "last-event-id": String(id) },
    signal,
  });
  onState?.(null);
  const parser = new EventParser();
  const reader = answer.body?.getReader();
  let anyCame = false;
  for (;;) {
    const piece = await reader?.read();
    if (piece === undefined || piece.done) return anyCame;
    for (const event of parser.push(piece.value)) {
      anyCame = true;
      if (event.comment === null) onEvent(event);
    }
  }
}

function isFinal(error: unknown): boolean {
  if (!(error instanceof ApiError)) return false;
  const { status } = error.fields;
  return status < 500 && status !== 408 && status !== 429;
}

function pause(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const timer = setTimeout(done, ms);
    signal.addEventListener("abort", done, { once: true });
    function done() {
      clearTimeout(timer);
      signal.removeEventListener("abort", done);
      resolve();
    }
  });
}
