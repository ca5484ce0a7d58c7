/** A sandboxed document of ours in a frame: it has no origin, so only messages go to it and come from it. */
import { type RefObject, useEffect, useRef, useState } from "react";

export interface Frame {
  element: RefObject<HTMLIFrameElement | null>;
  /** The last message of the document; null before the first. */
  message: Record<string, unknown> | null;
}

/** Returns a frame whose document gets `sent` as soon as it says that it is ready: `{[name]: "ready"}`; again if it changes. */
export function useFrame(name: string, sent: Record<string, unknown>): Frame {
  const element = useRef<HTMLIFrameElement>(null);
  const [isReady, setReady] = useState(false);
  const [message, setMessage] = useState<Record<string, unknown> | null>(null);
  useEffect(() => {
    const receive = (event: MessageEvent<Record<string, unknown> | null>) => {
      if (event.source !== element.current?.contentWindow || typeof event.data !== "object" || event.data === null)
        return;
      if (event.data[name] === "ready") setReady(true);
      else setMessage(event.data);
    };
    addEventListener("message", receive);
    return () => removeEventListener("message", receive);
  }, [name]);
  const text = JSON.stringify(sent);
  useEffect(() => {
    if (isReady) element.current?.contentWindow?.postMessage(JSON.parse(text), "*");
  }, [isReady, text]);
  return { element, message };
}
