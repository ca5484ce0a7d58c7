/** A Mermaid diagram, drawn in a sandboxed frame (frames/diagram.ts). */
import { type ReactNode, useSyncExternalStore } from "react";
import { addressOf } from "../../api/client";
import { isDark } from "../../theme/theme";
import { useFrame } from "./use_frame";

/** Pixels: a diagram's document says how high it is, and is not believed beyond this. */
const MOST_HEIGHT = 2000;

/** `otherwise` is shown, below the reason, for a source that Mermaid cannot draw. */
export default function Diagram({ source, otherwise }: { source: string; otherwise: ReactNode }) {
  const dark = useSyncExternalStore(followTheme, isDark);
  const { element, message } = useFrame("diagram", { source, isDark: dark });
  if (typeof message?.error === "string")
    return (
      <>
        <p className="px-3 pt-2 text-sm text-warn">This diagram cannot be drawn. Its source:</p>
        {otherwise}
      </>
    );
  const height = typeof message?.height === "number" ? Math.min(Math.max(message.height, 40), MOST_HEIGHT) : 120;
  return (
    <iframe
      ref={element}
      title="Diagram"
      src={addressOf("/page/diagram.html")}
      sandbox="allow-scripts"
      className="block w-full border-0"
      style={{ height }}
    />
  );
}

function followTheme(changed: () => void): () => void {
  const observer = new MutationObserver(changed);
  observer.observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
  const scheme = matchMedia("(prefers-color-scheme: dark)");
  scheme.addEventListener("change", changed);
  return () => {
    observer.disconnect();
    scheme.removeEventListener("change", changed);
  };
}
