/** A text that may be long, such as the result of a tool: its beginning, and the rest on demand. */
import { useState } from "react";
import { Button } from "../../ui/controls";

/** Characters that are shown at first. */
const SHOWN = 2000;

export function FoldedText({ label, text }: { label: string; text: string }) {
  const [isWhole, setWhole] = useState(false);
  const isCut = !isWhole && text.length > SHOWN;
  return (
    // A landmark of each would be too many, and a heading would stand among those of the answer.
    <figure aria-label={label} className="my-1">
      <figcaption className="text-xs text-faint">{label}</figcaption>
      <pre
        // biome-ignore lint/a11y/noNoninteractiveTabindex: the keyboard scrolls it.
        tabIndex={0}
        className="max-h-96 overflow-auto whitespace-pre-wrap break-words rounded bg-panel p-2 text-xs"
      >
        {isCut ? `${text.slice(0, SHOWN)}…` : text}
      </pre>
      {text.length > SHOWN && (
        <Button look="quiet" className="text-xs" onClick={() => setWhole(!isWhole)}>
          {isCut ? `Show all ${text.length.toLocaleString("en")} characters` : "Show less"}
        </Button>
      )}
    </figure>
  );
}

/** Returns JSON with one field a line, and any other text as it is. */
export function prettyJson(text: string): string {
  try {
    const value: unknown = JSON.parse(text);
    return typeof value === "object" ? JSON.stringify(value, null, 2) : text;
  } catch {
    return text;
  }
}
