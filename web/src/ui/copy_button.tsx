/** A button that puts a text onto the clipboard, and says so. */
import { useEffect, useState } from "react";
import { IconButton } from "./controls";

/** How long the button says that the text was copied, in milliseconds. */
const SAID_MS = 2000;

/** `label`: what is copied, as "Copy answer". `text` returns it when the button is pressed. */
export function CopyButton({ label, text, className = "" }: { label: string; text: () => string; className?: string }) {
  const [said, setSaid] = useState<string | null>(null);
  useEffect(() => {
    if (said === null) return;
    const timer = setTimeout(() => setSaid(null), SAID_MS);
    return () => clearTimeout(timer);
  }, [said]);
  return (
    <>
      <IconButton
        icon="copy"
        label={label}
        className={className}
        onClick={() => void copyText(text()).then((isDone) => setSaid(isDone ? "Copied" : "Not copied"))}
      >
        {said ?? "Copy"}
      </IconButton>
      <span role="status" className="sr-only">
        {said}
      </span>
    </>
  );
}

/** Puts a text onto the clipboard. Returns false if the browser does not let it. */
export async function copyText(text: string): Promise<boolean> {
  // Browsers have the clipboard on https and loopback alone; elsewhere the old way is left.
  if (navigator.clipboard === undefined) return copyBySelection(text);
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copyBySelection(text);
  }
}

function copyBySelection(text: string): boolean {
  const field = document.createElement("textarea");
  field.value = text;
  field.className = "fixed top-0 opacity-0";
  document.body.append(field);
  field.select();
  const isDone = document.execCommand("copy");
  field.remove();
  return isDone;
}
