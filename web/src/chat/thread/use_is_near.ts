/** Whether an element has ever been near what is seen: parsing Markdown waits for it in a long conversation. */
import { type RefObject, useLayoutEffect, useRef, useState } from "react";

/** Pixels from what is seen within which an element is near at once: about two screens. */
const MARGIN = 1600;
const CHANGE = "contentvisibilityautostatechange";

interface Nearness {
  element: RefObject<HTMLDivElement | null>;
  isNear: boolean;
}

/**
 * Returns a place for the element, and whether it is near. It must be within an element `data-turn` with
 * `content-visibility: auto`: the browser itself knows which of those are near, so that nothing more is observed.
 * `isAtOnce`: the element counts as near from the beginning. Where the browser cannot tell, every element does.
 */
export function useIsNear(isAtOnce: boolean): Nearness {
  const element = useRef<HTMLDivElement>(null);
  const [isNear, setNear] = useState(isAtOnce || !canTell());
  useLayoutEffect(() => {
    const turn = element.current?.closest("[data-turn]");
    const root = turn?.closest("[role=log]");
    // At once, so that an answer that was just stored looks in its first frame as it did before.
    if (isNear || turn == null || root == null || isClose(root, turn)) {
      setNear(true);
      return;
    }
    const look = (event: Event) => {
      if ("skipped" in event && event.skipped === false) setNear(true);
    };
    turn.addEventListener(CHANGE, look);
    return () => turn.removeEventListener(CHANGE, look);
  }, [isNear]);
  return { element, isNear };
}

function canTell(): boolean {
  return `on${CHANGE}` in HTMLElement.prototype || "ContentVisibilityAutoStateChangeEvent" in globalThis;
}

function isClose(root: Element, target: Element): boolean {
  const [seen, box] = [root.getBoundingClientRect(), target.getBoundingClientRect()];
  return box.bottom > seen.top - MARGIN && box.top < seen.bottom + MARGIN;
}
