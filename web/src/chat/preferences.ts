/** What the user chose for the chat, kept in this browser. */
import { useMemo, useSyncExternalStore } from "react";

export interface Preferences {
  /** Model that writes titles; empty: the first words of a conversation are its title. */
  titleModel: string;
  /** Whether new conversations are kept in this browser alone. */
  keepInBrowser: boolean;
}

const STORED = "roundhouse.chat";
const DEFAULTS: Preferences = { titleModel: "", keepInBrowser: false };
const CHANGED = "roundhouse-preferences";

/** Returns the preferences; the defaults where nothing was chosen, or the browser keeps nothing. */
export function readPreferences(): Preferences {
  return parse(readText());
}

function readText(): string {
  try {
    return localStorage.getItem(STORED) ?? "{}";
  } catch {
    return "{}";
  }
}

/** Keeps a change of the preferences. */
export function changePreferences(change: Partial<Preferences>): void {
  try {
    localStorage.setItem(STORED, JSON.stringify({ ...readPreferences(), ...change }));
  } catch {
    return;
  }
  dispatchEvent(new Event(CHANGED));
}

/** Returns the preferences, and renders again when they change, in another tab too. */
export function usePreferences(): Preferences {
  const text = useSyncExternalStore((changed) => {
    addEventListener(CHANGED, changed);
    addEventListener("storage", changed);
    return () => {
      removeEventListener(CHANGED, changed);
      removeEventListener("storage", changed);
    };
  }, readText);
  return useMemo(() => parse(text), [text]);
}

function parse(text: string): Preferences {
  try {
    const stored = JSON.parse(text) as Partial<Record<keyof Preferences, unknown>>;
    return {
      titleModel: typeof stored.titleModel === "string" ? stored.titleModel : DEFAULTS.titleModel,
      keepInBrowser: stored.keepInBrowser === true,
    };
  } catch {
    return DEFAULTS;
  }
}
