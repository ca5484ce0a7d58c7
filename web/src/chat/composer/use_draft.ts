/** The text of a message that is not sent yet, kept in this tab: a reload does not lose it. */
import { useCallback, useState } from "react";

/** Returns the draft of a conversation (null: of a new one), and what sets it; empty forgets it. */
export function useDraft(conversationId: string | null): [string, (text: string) => void] {
  const key = `roundhouse.draft.${conversationId ?? "new"}`;
  const [text, setText] = useState(() => read(key));
  const set = useCallback(
    (changed: string) => {
      setText(changed);
      write(key, changed);
    },
    [key],
  );
  return [text, set];
}

function read(key: string): string {
  try {
    return sessionStorage.getItem(key) ?? "";
  } catch {
    return "";
  }
}

function write(key: string, text: string): void {
  try {
    if (text === "") sessionStorage.removeItem(key);
    else sessionStorage.setItem(key, text);
  } catch {
    // Without storage, or for a text beyond its bounds, the draft lasts as long as the page.
  }
}
