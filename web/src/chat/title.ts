/** Titles of conversations that a model writes. */
import type { ApiClient } from "../api/client";
import { type Item, textOf } from "../api/items";
import { titleOf } from "./conversations";

const INSTRUCTIONS =
  "Write a title for the conversation that the user shows you: at most six words, in its language, without quotation marks or a full stop. Answer with the title alone.";
/** Characters of each message that the model reads: a title needs no more. */
const MOST_CHARACTERS = 2000;

/** Returns a title by `model`; null: it wrote none. Nothing is stored. Throws ApiError and NetworkError. */
export async function writeTitle(client: ApiClient, model: string, path: readonly Item[]): Promise<string | null> {
  const said = path.filter((item) => item.type === "message" && (item.role === "user" || item.role === "assistant"));
  const shown = said.slice(0, 2).map((item) => `${item.role}: ${textOf(item).slice(0, MOST_CHARACTERS)}`);
  const response = await client.request<{ output: Item[] }>("/v1/responses", {
    body: { model, instructions: INSTRUCTIONS, input: shown.join("\n\n"), max_output_tokens: 60, store: false },
  });
  const written = response.output
    .filter((item) => item.type === "message")
    .map(textOf)
    .join("")
    .trim();
  return written === "" ? null : titleOf(written.replace(/^["'“„«]+|["'”“».]+$/g, ""));
}
