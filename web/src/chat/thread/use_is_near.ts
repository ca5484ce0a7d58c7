/** Whether an element has ever been near what is seen: parsing Markdown waits for it in a long conversation. */
import { type RefObject, useLayoutEffect, useRef, useState } from "react";

/** How far from the edge of the window an element is near: about two screens. */
const MARGIN = "1600px 0px";

interface Nearness {
  element: RefObject<HTMLDivElement | null>;
  isNear: boolean;
}

/** `isAtOnce`: the element counts as near from the beginning. Where the browser cannot tell, every element does. */
export function useIsNear(isAtOnce: boolean): Nearness {
  const element = useRef<HTMLDivElement>(null);
  const [isNear, setNear] = useState(isAtOnce || typeof IntersectionObserver === "undefined");
  useLayoutEffect(() => {
    const target = element.current;
    if (isNear || target === null) return;
    const observer = new IntersectionObserver(
      (entries) => entries.some((entry) => entry.isIntersecting) && setNear(true),
      { rootMargin: MARGIN },
    );
    observer.observe(target);
    return () => observer.disconnect();
  }, [isNear]);
  return { element, isNear };
}
