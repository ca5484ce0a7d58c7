/** What a stream of response events has made of an answer so far. Pure: each event gives the next state. */
import { isRecord, readSteps } from "../api/errors";
import { type ContentPart, type Item, textOf } from "../api/items";
import type { ServerEvent } from "../api/sse";

export interface Progress {
  stage: "queue" | "load" | "prefill";
  model: string;
  /** 0 to 1 of the stage; null: the engine does not tell. */
  progress: number | null;
  queuePosition: number | null;
  /** How long such places usually wait: the median and the 90th percentile. */
  waitP50Ms: number | null;
  waitP90Ms: number | null;
  promptTokens: number | null;
  cachedTokens: number | null;
}

export interface Usage {
  inputTokens: number;
  cachedTokens: number;
  outputTokens: number;
  reasoningTokens: number;
}

export interface AnswerError {
  code: string;
  message: string;
  /** What the user can do. */
  nextSteps: readonly string[];
}

export interface Answer {
  responseId: string | null;
  model: string | null;
  /** Id of the item of the conversation that it follows; null: it begins a branch; undefined: the stream did not tell. */
  parentId?: string | null;
  /** `running` until the last event; `incomplete`: the model's or the user's limit of tokens ended it. */
  status: "running" | "completed" | "incomplete" | "failed";
  items: readonly Item[];
  /** Pieces of text, thoughts and arguments that have come: about as many tokens, as engines send each for itself. */
  pieces: number;
  /** What the answer waits for; null once its text has begun. */
  progress: Progress | null;
  /** The usage as the response object has it; null before the end, and where the engine reported none. */
  usage: unknown;
  error: AnswerError | null;
  /** Why it is incomplete, as `max_output_tokens`. */
  incompleteReason: string | null;
}

export const EMPTY_ANSWER: Answer = {
  responseId: null,
  model: null,
  status: "running",
  items: [],
  pieces: 0,
  progress: null,
  usage: null,
  error: null,
  incompleteReason: null,
};

/** Why an answer ended that its user, in whichever page, has stopped. */
export const STOPPED: AnswerError = { code: "stream_stopped", message: "You stopped this answer.", nextSteps: [] };

const PROGRESS = "progress ";

/** Returns the answer after one more event of its stream. Events of unknown types change nothing. */
export function applyEvent(answer: Answer, event: ServerEvent): Answer {
  if (event.comment !== null) return applyComment(answer, event.comment);
  const data = parse(event.data);
  if (data === null) return answer;
  const index = typeof data.output_index === "number" ? data.output_index : -1;
  switch (data.type) {
    case "response.created":
    case "response.in_progress":
      return { ...answer, ...head(data) };
    case "response.output_item.added":
      return isRecord(data.item) ? { ...setItem(answer, index, asItem(data.item)), progress: null } : answer;
    case "response.output_item.done":
      return isRecord(data.item) ? setItem(answer, index, asItem(data.item)) : answer;
    case "response.content_part.added":
      return isRecord(data.part) ? changePart(answer, index, data, () => data.part as ContentPart) : answer;
    case "response.output_text.delta":
    case "response.reasoning_text.delta":
      return countPiece(
        changePart(answer, index, data, (part) =>
          withText(part, data.type === "response.output_text.delta", data.delta),
        ),
      );
    case "response.output_text.annotation.added":
      return changePart(answer, index, data, (part) =>
        part?.type === "output_text"
          ? { ...part, annotations: [...(part.annotations ?? []), data.annotation as never] }
          : part,
      );
    case "response.function_call_arguments.delta":
    case "response.mcp_call_arguments.delta":
      return countPiece(
        changeItem(answer, index, (item) => ({ ...item, arguments: (item.arguments ?? "") + String(data.delta) })),
      );
    case "response.mcp_call.in_progress":
      return changeItem(answer, index, (item) => ({ ...item, status: "in_progress" }));
    case "response.completed":
    case "response.incomplete":
    case "response.failed":
      return finish(answer, data);
    case "error":
      return { ...answer, status: "failed", error: errorOf(data), progress: null };
    default:
      return isRecord(data.error)
        ? { ...answer, status: "failed", error: errorOf(data.error), progress: null }
        : answer;
  }
}

/** Returns the answer as one that did not come to its end. An error that its stream told stays. */
export function failAnswer(answer: Answer, error: AnswerError | null): Answer {
  return { ...answer, status: "failed", progress: null, error: answer.error ?? error };
}

/**
 * Returns what is worth keeping of an answer that did not come to its end, as items of a conversation, with the ids that
 * the stream gave them: thoughts and texts, the last of them `incomplete`, and calls of tools that have their result.
 */
export function partialItems(answer: Answer): Item[] {
  const kept: Item[] = [];
  for (const item of answer.items) {
    const isDone = item?.status === "completed";
    if (item?.type === "mcp_call" && isDone) kept.push(item);
    else if (item?.type === "message" || item?.type === "reasoning") {
      if (textOf(item) !== "") kept.push(isDone ? item : { ...item, status: "incomplete" });
    }
  }
  return kept;
}

function applyComment(answer: Answer, comment: string): Answer {
  if (!comment.startsWith(PROGRESS)) return answer;
  const fields = parse(comment.slice(PROGRESS.length));
  const stage = fields?.stage;
  if (fields === null || (stage !== "queue" && stage !== "load" && stage !== "prefill")) return answer;
  const number = (name: string) => (typeof fields[name] === "number" ? (fields[name] as number) : null);
  return {
    ...answer,
    progress: {
      stage,
      model: String(fields.model ?? ""),
      progress: number("progress"),
      queuePosition: number("queue_position"),
      waitP50Ms: number("wait_p50_ms"),
      waitP90Ms: number("wait_p90_ms"),
      promptTokens: number("prompt_tokens"),
      cachedTokens: number("cached_tokens"),
    },
  };
}

function head(data: Record<string, unknown>): Pick<Answer, "responseId" | "model" | "parentId"> {
  const response = isRecord(data.response) ? data.response : {};
  const parentId = isRecord(response.conversation) ? response.conversation.parent_id : undefined;
  return {
    responseId: typeof response.id === "string" ? response.id : null,
    model: typeof response.model === "string" ? response.model : null,
    ...(typeof parentId === "string" || parentId === null ? { parentId } : {}),
  };
}

function finish(answer: Answer, data: Record<string, unknown>): Answer {
  const response = isRecord(data.response) ? data.response : {};
  const status = response.status === "completed" || response.status === "incomplete" ? response.status : "failed";
  const items =
    Array.isArray(response.output) && status !== "failed" ? response.output.filter(isRecord).map(asItem) : answer.items;
  const details = isRecord(response.incomplete_details) ? response.incomplete_details : {};
  return {
    ...answer,
    ...head(data),
    status,
    items,
    progress: null,
    usage: response.usage ?? null,
    error: errorOfEnd(response) ?? answer.error,
    incompleteReason: typeof details.reason === "string" ? details.reason : null,
  };
}

/** Returns the usage of a response object; null where the engine reported none. */
export function usageOf(value: unknown): Usage | null {
  if (!isRecord(value)) return null;
  const details = (name: string, field: string) =>
    isRecord(value[name]) && typeof value[name][field] === "number" ? (value[name][field] as number) : 0;
  return {
    inputTokens: Number(value.input_tokens ?? 0),
    cachedTokens: details("input_tokens_details", "cached_tokens"),
    outputTokens: Number(value.output_tokens ?? 0),
    reasoningTokens: details("output_tokens_details", "reasoning_tokens"),
  };
}

function errorOfEnd(response: Record<string, unknown>): AnswerError | null {
  if (isRecord(response.error)) return errorOf(response.error);
  return response.status === "cancelled" ? STOPPED : null;
}

function errorOf(fields: Record<string, unknown>): AnswerError {
  return {
    code: String(fields.code ?? "unknown"),
    message: String(fields.message ?? "The answer failed."),
    nextSteps: readSteps(fields),
  };
}

function asItem(value: Record<string, unknown>): Item {
  return { parent_id: null, ...value } as Item;
}

function countPiece(answer: Answer): Answer {
  return { ...answer, pieces: answer.pieces + 1 };
}

function setItem(answer: Answer, index: number, item: Item): Answer {
  if (index < 0) return answer;
  const items = [...answer.items];
  items[index] = item;
  return { ...answer, items };
}

function changeItem(answer: Answer, index: number, change: (item: Item) => Item): Answer {
  const item = answer.items[index];
  return item === undefined ? answer : setItem(answer, index, change(item));
}

function changePart(
  answer: Answer,
  index: number,
  data: Record<string, unknown>,
  change: (part: ContentPart | undefined) => ContentPart | undefined,
): Answer {
  const place = typeof data.content_index === "number" ? data.content_index : 0;
  return {
    ...changeItem(answer, index, (item) => {
      const content = [...(item.content ?? [])];
      const part = change(content[place]);
      if (part !== undefined) content[place] = part;
      return { ...item, content };
    }),
    progress: null,
  };
}

function withText(part: ContentPart | undefined, isOutput: boolean, delta: unknown): ContentPart {
  const text = typeof delta === "string" ? delta : "";
  if (part !== undefined && "text" in part) return { ...part, text: part.text + text };
  return isOutput ? { type: "output_text", text, annotations: [] } : { type: "reasoning_text", text };
}

function parse(text: string): Record<string, unknown> | null {
  try {
    const value: unknown = JSON.parse(text);
    return isRecord(value) ? value : null;
  } catch {
    return null;
  }
}
