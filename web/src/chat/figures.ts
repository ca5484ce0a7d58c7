/** Figures of answers: tokens, and times that only the page which read an answer knows. Kept in this browser, by items' ids. */
import type { Item } from "../api/items";
import type { Usage } from "./answer";
import type { StreamSnapshot } from "./answer_stream";

/** What is known of one answer. Times are milliseconds; null: this page did not read the answer from its beginning. */
export interface AnswerFigures {
  usage: Usage;
  firstTokenMs: number | null;
  tokensPerSecond: number | null;
}

/** When items of an answer were first seen, and when the next one was; by id, in milliseconds of `performance.now()`. */
export type ItemTimes = Readonly<Record<string, { from: number; until: number | null }>>;

/** Returns the times after these items were seen at `now`. `isOver`: the last item has ended, too. */
export function noteTimes(times: ItemTimes, items: readonly Item[], now: number, isOver: boolean): ItemTimes {
  const last = items.length - 1;
  const isKnown = items.every(({ id }, index) => {
    const time = times[id];
    return time !== undefined && (time.until !== null) === (isOver || index < last);
  });
  if (isKnown) return times;
  return Object.fromEntries(
    items.map(({ id }, index) => {
      const time = times[id] ?? { from: now, until: null };
      return [id, { ...time, until: time.until ?? (isOver || index < last ? now : null) }];
    }),
  );
}

/** Seconds below which a speed says nothing: the answer came in one piece, or was read from a stream that had ended. */
const SHORTEST_S = 0.1;

/** Returns the figures of an answer that ended; null where the engine told no usage. */
export function figuresOf({ answer, requestedAt, startedAt, endedAt }: StreamSnapshot): AnswerFigures | null {
  if (answer.usage === null) return null;
  const isWhole = requestedAt !== null && startedAt !== null && endedAt !== null;
  const seconds = isWhole ? (endedAt - startedAt) / 1000 : 0;
  return {
    usage: answer.usage,
    firstTokenMs: isWhole ? startedAt - requestedAt : null,
    tokensPerSecond:
      seconds >= SHORTEST_S && answer.usage.outputTokens > 1 ? answer.usage.outputTokens / seconds : null,
  };
}

/** Returns the sum of the figures of an answer's parts (one for each response); the times are the last one's. Null for none. */
export function sumFigures(parts: readonly AnswerFigures[]): AnswerFigures | null {
  const last = parts.at(-1);
  if (last === undefined) return null;
  const total = (field: keyof Usage) => parts.reduce((sum, part) => sum + part.usage[field], 0);
  const usage = {
    inputTokens: total("inputTokens"),
    cachedTokens: total("cachedTokens"),
    outputTokens: total("outputTokens"),
    reasoningTokens: total("reasoningTokens"),
  };
  return { ...last, usage };
}

interface Entry {
  figures?: AnswerFigures;
  /** How long an item of thoughts took, in milliseconds. */
  tookMs?: number;
}

const STORED = "roundhouse.figures";
/** Entries that are kept; the oldest give way. */
const MOST = 1000;

export class FigureStore {
  readonly #entries: Map<string, Entry>;

  /** Reads what this browser has kept. */
  constructor() {
    this.#entries = readEntries();
  }

  /** Returns the figures of the answer that ends with the item; null if this browser does not know them. */
  findFigures(itemId: string): AnswerFigures | null {
    return this.#entries.get(itemId)?.figures ?? null;
  }

  /** Returns how long an item of thoughts took, in milliseconds; null if this browser does not know it. */
  findTook(itemId: string): number | null {
    return this.#entries.get(itemId)?.tookMs ?? null;
  }

  /** Keeps the figures of an answer that ended. */
  keep(snapshot: StreamSnapshot): void {
    const { items } = snapshot.answer;
    if (snapshot.requestedAt !== null)
      for (const { id, type } of items) {
        const time = snapshot.itemTimes[id];
        if (type === "reasoning" && time !== undefined && time.until !== null)
          this.#entries.set(id, { tookMs: time.until - time.from });
      }
    const figures = figuresOf(snapshot);
    const last = items.at(-1);
    if (figures !== null && last !== undefined) this.#entries.set(last.id, { ...this.#entries.get(last.id), figures });
    for (const id of [...this.#entries.keys()].slice(0, Math.max(0, this.#entries.size - MOST)))
      this.#entries.delete(id);
    try {
      localStorage.setItem(STORED, JSON.stringify([...this.#entries]));
    } catch {
      // Without storage they last as long as the page.
    }
  }
}

function readEntries(): Map<string, Entry> {
  try {
    const stored: unknown = JSON.parse(localStorage.getItem(STORED) ?? "[]");
    return new Map(Array.isArray(stored) ? (stored as [string, Entry][]) : []);
  } catch {
    return new Map();
  }
}
