/** An answer as Markdown: what the model said, without its thoughts and calls. Pure. */
import { type Item, textOf } from "../../api/items";

export function answerMarkdown(items: readonly Item[]): string {
  return items
    .filter((item) => item.type === "message")
    .map((item) => textOf(item).trim())
    .filter((text) => text !== "")
    .join("\n\n");
}
