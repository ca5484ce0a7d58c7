/** Keeps the end of growing content in view, until the reader scrolls up; and again once the reader is at the end. */
import { useCallback, useEffect, useRef, useState } from "react";

/** Pixels from the end within which a reader counts as being at the end. */
const NEAR_END = 48;

function isNearEnd({ scrollHeight, scrollTop, clientHeight }: HTMLElement): boolean {
  return scrollHeight - scrollTop - clientHeight < NEAR_END;
}

export function useFollowedScroll() {
  const container = useRef<HTMLDivElement>(null);
  const content = useRef<HTMLDivElement>(null);
  const isAtEnd = useRef(true);
  const lastTop = useRef(0);
  const [isAway, setAway] = useState(false);

  useEffect(() => {
    const [outer, inner] = [container.current, content.current];
    if (outer === null || inner === null || typeof ResizeObserver === "undefined") return;
    const observer = new ResizeObserver(() => {
      // What has become shorter may have nothing below the reader any more.
      if (isNearEnd(outer)) isAtEnd.current = true;
      if (isAtEnd.current) outer.scrollTop = outer.scrollHeight;
      setAway(!isAtEnd.current);
    });
    // The window, too: what appears below it, such as a note above the message, would cover the end.
    observer.observe(inner);
    observer.observe(outer);
    return () => observer.disconnect();
  }, []);

  function onScroll() {
    const outer = container.current;
    if (outer === null) return;
    // The event of our own scrolling may come when the content has grown again: only a way up is the reader's.
    if (isNearEnd(outer)) isAtEnd.current = true;
    else if (outer.scrollTop < lastTop.current) isAtEnd.current = false;
    lastTop.current = outer.scrollTop;
    setAway(!isAtEnd.current);
  }

  /** Shows the end, and keeps it in view. */
  const toEnd = useCallback(() => {
    isAtEnd.current = true;
    setAway(false);
    const outer = container.current;
    if (outer !== null) outer.scrollTop = outer.scrollHeight;
  }, []);

  /** `isAway`: the reader has left the end. */
  return { container, content, onScroll, isAway, toEnd };
}
