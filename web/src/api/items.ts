/** Items of a conversation, in the form of OpenAI's responses, and what streams change in them. */

export interface Annotation {
  type: string;
  file_id?: string;
  filename?: string;
  index?: number;
  [field: string]: unknown;
}

export type ContentPart =
  | { type: "input_text"; text: string }
  | { type: "output_text"; text: string; annotations?: Annotation[] }
  | { type: "refusal"; refusal: string }
  | { type: "reasoning_text" | "summary_text"; text: string }
  | { type: "input_image"; image_url?: string; detail?: string }
  | { type: "input_audio"; input_audio: { data: string; format: string } }
  | { type: "input_file"; filename?: string; file_data?: string; file_id?: string };

/**
 * Returns 32 random hexadecimal digits. `crypto.randomUUID` is missing from pages that come over plain HTTP from another
 * machine.
 */
export function randomId(): string {
  return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** What the gateway keeps of a response with each of its items (docs/conversations.md). Times are milliseconds; null: unknown. */
export interface ItemAnswer {
  response_id: string;
  took_ms: number | null;
  /** Of the whole response, in its last item alone. Both times are since its request. */
  figures: { model: string; usage: unknown; first_token_ms: number | null; total_ms: number | null } | null;
}

export interface Item {
  id: string;
  type: string;
  /** Id of the item before it; null for the first of a branch. */
  parent_id: string | null;
  status?: string;
  role?: "user" | "assistant" | "system" | "developer";
  content?: ContentPart[];
  summary?: ContentPart[];
  /** Of calls of tools. */
  name?: string;
  server_label?: string;
  arguments?: string;
  output?: string | null;
  error?: unknown;
  call_id?: string;
  approval_request_id?: string | null;
  approve?: boolean;
  tools?: { name: string; description?: string }[];
  /** How a response made the item; missing where a client added it. */
  answer?: ItemAnswer | null;
  [field: string]: unknown;
}

/** Returns the text of an item, its parts joined; empty for an item without text. */
export function textOf(item: Pick<Item, "content">): string {
  return (item.content ?? [])
    .map((part) => ("text" in part ? part.text : part.type === "refusal" ? part.refusal : ""))
    .join("");
}
