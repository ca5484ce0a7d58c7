/** Keeps the end of growing content in view, until the reader scrolls up; and again once the reader is at the end. */
import { useEffect, useRef } from "react";

/** Pixels from the end within which a reader counts as being at the end. */
const NEAR_END = 48;

export function useFollowedScroll() {
  const container = useRef<HTMLDivElement>(null);
  const content = useRef<HTMLDivElement>(null);
  const isAtEnd = useRef(true);
  const lastTop = useRef(0);

  useEffect(() => {
    const [outer, inner] = [container.current, content.current];
    if (outer === null || inner === null || typeof ResizeObserver === "undefined") return;
    const observer = new ResizeObserver(() => {
      if (isAtEnd.current) outer.scrollTop = outer.scrollHeight;
    });
    observer.observe(inner);
    return () => observer.disconnect();
  }, []);

  function onScroll() {
    const outer = container.current;
    if (outer === null) return;
    // The event of our own scrolling may come when the content has grown again: only a way up is the reader's.
    if (outer.scrollHeight - outer.scrollTop - outer.clientHeight < NEAR_END) isAtEnd.current = true;
    else if (outer.scrollTop < lastTop.current) isAtEnd.current = false;
    lastTop.current = outer.scrollTop;
  }

  return { container, content, onScroll };
}
