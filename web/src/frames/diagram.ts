/**
 * Draws a Mermaid diagram in a sandboxed document of its own: Mermaid needs inline styles, which the page's policy forbids,
 * and a fault in it must not reach the page. Receives `{source, isDark}`, answers `{height}`, again whenever the diagram
 * gets another, or `{error}`.
 */
import mermaid from "mermaid";
import { withoutTags } from "./without_tags";

function reply(message: Record<string, unknown>): void {
  parent.postMessage(message, "*");
}

/** Milliseconds until the frame's width is looked at again. No observer tells it: those of a frame out of sight rest. */
const PAUSE_MS = 20;

/** Resolves once this frame is laid out: before, Mermaid measures every text as 0 wide, and draws them on one another. */
async function awaitWidth(): Promise<void> {
  while (innerWidth === 0) await new Promise((resolve) => setTimeout(resolve, PAUSE_MS));
}

// A diagram is as wide as its frame, which gets another width with the window.
const sizes = new ResizeObserver(([drawn]) => {
  if (drawn !== undefined) reply({ height: Math.ceil(drawn.target.getBoundingClientRect().height) });
});

async function draw(source: string, isDark: boolean): Promise<void> {
  mermaid.initialize({ startOnLoad: false, securityLevel: "strict", theme: isDark ? "dark" : "neutral" });
  document.documentElement.style.colorScheme = isDark ? "dark" : "light";
  document.body.style.margin = "0";
  await awaitWidth();
  try {
    const { svg } = await mermaid.render("diagram", withoutTags(source));
    document.body.replaceChildren(...new DOMParser().parseFromString(svg, "text/html").body.childNodes);
    sizes.disconnect();
    for (const drawn of document.body.querySelectorAll<SVGElement>(":scope > svg")) {
      // An image in a line has room below it, and would be higher than its frame.
      drawn.style.display = "block";
      sizes.observe(drawn);
    }
  } catch (error) {
    reply({ error: error instanceof Error ? error.message : String(error) });
  }
}

// One after the other, as Mermaid draws.
let drawing = Promise.resolve();
addEventListener("message", (event: MessageEvent<{ source?: unknown; isDark?: unknown }>) => {
  if (event.source !== parent || typeof event.data?.source !== "string") return;
  const { source, isDark } = event.data;
  drawing = drawing.then(() => draw(source, isDark === true));
});
reply({ diagram: "ready" });
