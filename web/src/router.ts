/** Routes of the page, in the address's hash: paths of the gateway's own (`/models`, `/tools`) stay the API's. */
import { useSyncExternalStore } from "react";

export const VIEWS = ["chat", "models", "documents", "activity", "settings"] as const;
export type View = (typeof VIEWS)[number];

export interface Route {
  view: View;
  /** What the view shows: a conversation's id, a model's name. Null: the view's start. */
  name: string | null;
}

/** Returns the route of a hash such as `#/models/qwen`; an unknown one is the chat's start. */
export function parseRoute(hash: string): Route {
  const [view, ...rest] = hash.replace(/^#\/?/, "").split("/");
  const known = VIEWS.find((each) => each === view);
  if (known === undefined) return { view: "chat", name: null };
  try {
    return { view: known, name: decodeURIComponent(rest.join("/")) || null };
  } catch {
    return { view: known, name: null };
  }
}

/** Returns the hash of a route. */
export function routeHash(view: View, name: string | null = null): string {
  return name === null ? `#/${view}` : `#/${view}/${encodeURIComponent(name)}`;
}

/** Goes to a route. `replace`: without an entry in the browser's history. */
export function navigate(view: View, name: string | null = null, replace = false): void {
  if (replace) {
    history.replaceState(null, "", routeHash(view, name));
    dispatchEvent(new HashChangeEvent("hashchange"));
  } else {
    location.hash = routeHash(view, name);
  }
}

/** Returns the current route, and renders again when it changes. */
export function useRoute(): Route {
  return parseRoute(
    useSyncExternalStore(
      (changed) => {
        addEventListener("hashchange", changed);
        return () => removeEventListener("hashchange", changed);
      },
      () => location.hash,
    ),
  );
}
