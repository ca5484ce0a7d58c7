/** A conversation as one HTML file that needs nothing else: no script, no other file, no host. */
import { type Item, textOf } from "../../api/items";
import type { Portable } from "./portable";

const STYLE = `
:root { color-scheme: light dark; }
body { font: 1rem/1.6 system-ui, sans-serif; max-width: 46rem; margin: 2rem auto; padding: 0 1rem; }
article { margin: 1.5rem 0; white-space: pre-wrap; overflow-wrap: anywhere; }
.user { background: color-mix(in srgb, currentColor 8%, transparent); border-radius: 1rem; padding: .5rem 1rem; margin-left: 15%; }
h1 { font-size: 1.4rem; } h2 { font-size: .8rem; opacity: .7; margin: 0; text-transform: uppercase; }
img { max-width: 100%; border-radius: .5rem; } details { opacity: .8; } footer { opacity: .7; font-size: .8rem; }`;
const POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:";

/** Returns the file's text for a path of items. Every text is escaped: nothing that a model wrote becomes HTML. */
export function writeShareHtml(portable: Portable, path: readonly Item[]): string {
  const date = portable.createdAt === null ? "" : new Date(portable.createdAt * 1000).toISOString().slice(0, 10);
  const model = portable.settings.model === undefined ? "" : ` with ${escapeHtml(portable.settings.model)}`;
  return `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="${POLICY}">
<title>${escapeHtml(portable.title)}</title>
<style>${STYLE}</style>
</head>
<body>
<h1>${escapeHtml(portable.title)}</h1>
${path.map(showItem).join("\n")}
<footer>Conversation${model}${date && ` of ${date}`}, shared from Roundhouse.</footer>
</body>
</html>
`;
}

function showItem(item: Item): string {
  if (item.type === "reasoning") {
    const thought = textOf(item) || textOf({ content: item.summary ?? [] });
    return thought === ""
      ? ""
      : `<details><summary>Thoughts</summary><article>${escapeHtml(thought)}</article></details>`;
  }
  if (item.type === "mcp_call" || item.type === "function_call") {
    const parts = [item.arguments, item.output].filter((part): part is string => typeof part === "string");
    return `<details><summary>Tool ${escapeHtml(String(item.name))}</summary><article>${parts.map(escapeHtml).join("\n")}</article></details>`;
  }
  if (item.type !== "message" || item.role === "system" || item.role === "developer") return "";
  const who = item.role === "assistant" ? "Model" : "User";
  return `<article class="${item.role}"><h2>${who}</h2>${escapeHtml(textOf(item))}${imagesOf(item)}</article>`;
}

function imagesOf(item: Item): string {
  return (item.content ?? [])
    .map((part) => (part.type === "input_image" && part.image_url?.startsWith("data:image/") ? part.image_url : null))
    .filter((url): url is string => url !== null)
    .map((url) => `<br><img alt="Attached image" src="${escapeHtml(url)}">`)
    .join("");
}

function escapeHtml(text: string): string {
  return text.replace(/[&<>"']/g, (character) => `&#${character.charCodeAt(0)};`);
}
