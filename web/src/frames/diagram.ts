/**
 * Draws a Mermaid diagram in a sandboxed document of its own: Mermaid needs inline styles, which the page's policy forbids,
 * and a fault in it must not reach the page. Receives `{source, isDark}`, answers `{height}` or `{error}`.
 */
import mermaid from "mermaid";
import { withoutTags } from "./without_tags";

function reply(message: Record<string, unknown>): void {
  parent.postMessage(message, "*");
}

async function draw(source: string, isDark: boolean): Promise<void> {
  mermaid.initialize({ startOnLoad: false, securityLevel: "strict", theme: isDark ? "dark" : "neutral" });
  document.documentElement.style.colorScheme = isDark ? "dark" : "light";
  document.body.style.margin = "0";
  try {
    const { svg } = await mermaid.render("diagram", withoutTags(source));
    document.body.replaceChildren(...new DOMParser().parseFromString(svg, "text/html").body.childNodes);
    reply({ height: Math.ceil(document.documentElement.scrollHeight) });
  } catch (error) {
    reply({ error: error instanceof Error ? error.message : String(error) });
  }
}

addEventListener("message", (event: MessageEvent<{ source?: unknown; isDark?: unknown }>) => {
  if (event.source !== parent || typeof event.data?.source !== "string") return;
  void draw(event.data.source, event.data.isDark === true);
});
reply({ diagram: "ready" });
