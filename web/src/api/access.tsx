/** The key that the user signed in with, and the client that sends it. */
import { createContext, type ReactNode, use, useCallback, useMemo, useRef, useState } from "react";
import { ApiClient } from "./client";

const STORED = "roundhouse.key";

export interface Access {
  client: ApiClient;
  /** Whether the gateway refused the last request for want of a valid key. */
  needsKey: boolean;
  hasKey: boolean;
  /** Keeps the key for this page; `remember`: in this browser, until `signOut`. */
  signIn: (key: string, remember: boolean) => void;
  signOut: () => void;
}

const AccessContext = createContext<Access | null>(null);

/** Returns the access of the page. Throws outside of `AccessProvider`. */
export function useAccess(): Access {
  const access = use(AccessContext);
  if (access === null) throw new Error("useAccess is used outside of AccessProvider");
  return access;
}

/** Returns the client of the gateway's API. */
export function useClient(): ApiClient {
  return useAccess().client;
}

/** Gives the page its client. The key is in memory, and in this browser if the user asked for it: never in an address. */
export function AccessProvider({ children }: { children: ReactNode }) {
  const key = useRef<string | null>(readStoredKey());
  const [needsKey, setNeedsKey] = useState(false);
  const [hasKey, setHasKey] = useState(key.current !== null);
  const client = useMemo(
    () =>
      new ApiClient(
        () => key.current,
        () => setNeedsKey(true),
      ),
    [],
  );
  const signIn = useCallback((entered: string, remember: boolean) => {
    key.current = entered;
    storeKey(remember ? entered : null);
    setHasKey(true);
    setNeedsKey(false);
  }, []);
  const signOut = useCallback(() => {
    key.current = null;
    storeKey(null);
    setHasKey(false);
  }, []);
  const access = useMemo(
    () => ({ client, needsKey, hasKey, signIn, signOut }),
    [client, needsKey, hasKey, signIn, signOut],
  );
  return <AccessContext value={access}>{children}</AccessContext>;
}

function readStoredKey(): string | null {
  try {
    return localStorage.getItem(STORED);
  } catch {
    return null;
  }
}

function storeKey(key: string | null): void {
  try {
    if (key === null) localStorage.removeItem(STORED);
    else localStorage.setItem(STORED, key);
  } catch {
    // Without storage the key lasts as long as the page.
  }
}
