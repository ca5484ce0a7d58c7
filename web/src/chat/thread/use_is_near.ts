/** Whether an element has ever been near what is seen: parsing Markdown waits for it in a long conversation. */
import { type RefObject, useLayoutEffect, useRef, useState } from "react";

/** Pixels from what is seen within which an element is near: about two screens. */
const MARGIN = 1600;

interface Nearness {
  element: RefObject<HTMLDivElement | null>;
  isNear: boolean;
}

/**
 * Returns a place for the element, and whether it is near. It must be in an element `[role=log]` that scrolls.
 * `isAtOnce`: it counts as near from the beginning. Where the browser cannot tell, every element does.
 */
export function useIsNear(isAtOnce: boolean): Nearness {
  const element = useRef<HTMLDivElement>(null);
  const [isNear, setNear] = useState(isAtOnce || typeof IntersectionObserver === "undefined");
  useLayoutEffect(() => {
    const target = element.current;
    if (isNear || target === null) return;
    const root = target.closest("[role=log]");
    // At once, so that an answer that was just stored looks in its first frame as it did before.
    if (root !== null && isClose(root, target.closest("[data-turn]") ?? target)) {
      setNear(true);
      return;
    }
    const options = { root, rootMargin: `${MARGIN}px 0px` };
    const observer = new IntersectionObserver((entries) => {
      if (entries.some((entry) => entry.isIntersecting)) setNear(true);
    }, options);
    observer.observe(target);
    return () => observer.disconnect();
  }, [isNear]);
  return { element, isNear };
}

function isClose(root: Element, target: Element): boolean {
  const [seen, box] = [root.getBoundingClientRect(), target.getBoundingClientRect()];
  return box.bottom > seen.top - MARGIN && box.top < seen.bottom + MARGIN;
}
