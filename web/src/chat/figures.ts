/** Figures of answers: tokens and times. The gateway keeps them with the items; for conversations in the browser the page does. */
import type { Item, ItemAnswer } from "../api/items";
import { type Usage, usageOf } from "./answer";
import type { StreamSnapshot } from "./answer_stream";

/** What is known of one answer. Times are milliseconds; null: not known. */
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

/** Milliseconds below which a speed says nothing: the answer came in one piece. */
const SHORTEST_MS = 100;

/** Returns the figures of the response that ends with an item; null where none does, or the engine told no usage. */
export function figuresOf({ answer }: Pick<Item, "answer">): AnswerFigures | null {
  const figures = answer?.figures;
  const usage = usageOf(figures?.usage);
  if (figures == null || usage === null) return null;
  const { first_token_ms: first, total_ms: total } = figures;
  const ms = first === null || total === null ? 0 : total - first;
  return {
    usage,
    firstTokenMs: first,
    tokensPerSecond: ms >= SHORTEST_MS && usage.outputTokens > 1 ? (usage.outputTokens * 1000) / ms : null,
  };
}

/** Returns the items of an answer that ended, each with what the gateway would tell of it: for those it does not keep. */
export function withFigures({ answer, itemTimes, requestedAt, startedAt, endedAt }: StreamSnapshot): Item[] {
  const since = (time: number | null) =>
    requestedAt === null || time === null ? null : Math.round(time - requestedAt);
  return answer.items.map((item, index) => {
    const time = itemTimes[item.id];
    const isLast = index === answer.items.length - 1;
    return {
      ...item,
      answer: {
        response_id: answer.responseId ?? "",
        took_ms:
          requestedAt === null || time === undefined || time.until === null ? null : Math.round(time.until - time.from),
        figures: isLast
          ? {
              model: answer.model ?? "",
              usage: answer.usage,
              first_token_ms: since(startedAt),
              total_ms: since(endedAt),
            }
          : null,
      } satisfies ItemAnswer,
    };
  });
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
