/** Whether turns have ever been near what is seen: parsing their Markdown waits for it in a long conversation. */
import { createContext, type RefObject, startTransition, useLayoutEffect, useRef, useState } from "react";

const CHANGE = "contentvisibilityautostatechange";

interface Nearness {
  element: RefObject<HTMLDivElement | null>;
  isNear: boolean;
}

/** Whether the turns around an element have ever been near. An answer that is being made is in no turn: it is near. */
export const NearContext = createContext(true);

/**
 * Returns a place for an element, and whether it has ever been near. It must have `content-visibility: auto`: the browser
 * itself knows which of those are near, so that nothing more is observed. `isAtOnce`: the element counts as near from the
 * beginning. Where the browser cannot tell, every element does.
 */
export function useIsNear(isAtOnce: boolean): Nearness {
  const element = useRef<HTMLDivElement>(null);
  const [isNear, setNear] = useState(isAtOnce || !canTell());
  useLayoutEffect(() => {
    const observed = element.current;
    if (isNear || observed === null) return;
    const look = (event: Event) => {
      // Parsing may take longer than a frame, and the reader scrolls on meanwhile.
      if ("skipped" in event && event.skipped === false) startTransition(() => setNear(true));
    };
    observed.addEventListener(CHANGE, look);
    return () => observed.removeEventListener(CHANGE, look);
  }, [isNear]);
  return { element, isNear };
}

function canTell(): boolean {
  return `on${CHANGE}` in HTMLElement.prototype || "ContentVisibilityAutoStateChangeEvent" in globalThis;
}
