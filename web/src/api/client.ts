/** Requests to the gateway that served this page, with the key that the user signed in with. */
import { ApiError, isRecord, NetworkError, readError } from "./errors";

export interface RequestOptions {
  method?: "GET" | "POST" | "PUT" | "DELETE";
  /** Sent as JSON, unless it is a form. */
  body?: unknown;
  query?: Record<string, string | number | boolean | null | undefined>;
  headers?: Record<string, string>;
  signal?: AbortSignal;
}

/** Returns where a path of the gateway is: below the page's own address, which may have a prefix that a proxy adds. */
export function addressOf(path: string): string {
  return (import.meta.env.DEV ? "/" : new URL(".", document.baseURI).pathname) + path.slice(1);
}

export class ApiClient {
  readonly #readKey: () => string | null;
  readonly #onRefusedKey: () => void;

  /** `readKey` returns the key of the moment, null for none. `onRefusedKey` is called for an answer `invalid_api_key`. */
  constructor(readKey: () => string | null, onRefusedKey: () => void = () => {}) {
    this.#readKey = readKey;
    this.#onRefusedKey = onRefusedKey;
  }

  /** Returns the answer's JSON; null for an answer without a body. Throws ApiError and NetworkError. */
  async request<T>(path: string, options: RequestOptions = {}): Promise<T> {
    const answer = await this.fetch(path, options);
    const text = await readText(answer);
    return (text === "" ? null : JSON.parse(text)) as T;
  }

  /**
   * Returns an answer with a status below 400, its body unread. Throws ApiError for any other, NetworkError if none came,
   * and the signal's reason if it was aborted.
   */
  async fetch(path: string, options: RequestOptions = {}): Promise<Response> {
    const headers = new Headers(options.headers);
    const key = this.#readKey();
    if (key !== null) headers.set("authorization", `Bearer ${key}`);
    const init: RequestInit = { method: options.method ?? (options.body === undefined ? "GET" : "POST"), headers };
    if (options.body instanceof FormData) init.body = options.body;
    else if (options.body !== undefined) {
      headers.set("content-type", "application/json");
      init.body = JSON.stringify(options.body);
    }
    if (options.signal !== undefined) init.signal = options.signal;
    let answer: Response;
    try {
      answer = await fetch(addressOf(path) + queryOf(options.query), {
        ...init,
        credentials: "omit",
        cache: "no-store",
      });
    } catch (error) {
      options.signal?.throwIfAborted();
      if (error instanceof TypeError) throw new NetworkError();
      throw error;
    }
    if (answer.status < 400) return answer;
    const error = readError(parseOrNull(await readText(answer)), answer.status, answer.headers.get("retry-after"));
    if (error.fields.code === "invalid_api_key") this.#onRefusedKey();
    throw error;
  }

  /** Returns all entries of a list with cursors, at most `most` of them. */
  async list<T>(path: string, query: RequestOptions["query"] = {}, most = 1000): Promise<T[]> {
    const found: T[] = [];
    let after: string | null = null;
    do {
      const page: { data: T[]; has_more?: boolean; last_id?: string | null } = await this.request(path, {
        query: { ...query, after },
      });
      found.push(...page.data);
      after = page.has_more && page.data.length > 0 ? (page.last_id ?? null) : null;
    } while (after !== null && found.length < most);
    return found;
  }
}

/** Returns what a user can be told of an error: what is wrong, and what to do. */
export function describeError(error: unknown): { message: string; nextSteps: string[] } {
  if (error instanceof ApiError) return { message: error.message, nextSteps: error.fields.nextSteps };
  return { message: error instanceof Error ? error.message : String(error), nextSteps: [] };
}

function queryOf(query: RequestOptions["query"]): string {
  const pairs = Object.entries(query ?? {}).filter(([, value]) => value !== null && value !== undefined);
  return pairs.length === 0 ? "" : `?${new URLSearchParams(pairs.map(([name, value]) => [name, String(value)]))}`;
}

async function readText(answer: Response): Promise<string> {
  try {
    return await answer.text();
  } catch (error) {
    if (error instanceof TypeError) throw new NetworkError();
    throw error;
  }
}

function parseOrNull(text: string): unknown {
  try {
    const value: unknown = JSON.parse(text);
    return isRecord(value) ? value : null;
  } catch {
    return null;
  }
}
