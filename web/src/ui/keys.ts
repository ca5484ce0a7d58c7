/** The page's keys: what each does, and which control it presses. */
import { navigate } from "../router";

export interface Shortcut {
  /** Of a control with the attribute `data-shortcut`, if the key presses or focuses one. */
  id: string;
  /** Keys as they are shown, each in its own form: `Ctrl+K`. */
  keys: readonly string[];
  does: string;
  /**
   * `press`: clicks the last control of that id that can be seen and used; `focus`: goes to it, in the chat; `list`: opens
   * the list of keys; `new`: begins a conversation. None: the control itself takes the key.
   */
  act?: "press" | "focus" | "list" | "new";
}

/** Every key of the page, in the order in which they are listed. `Ctrl` is `Cmd` on a Mac. */
export const SHORTCUTS: readonly Shortcut[] = [
  { id: "keys", keys: ["?"], does: "Show this list", act: "list" },
  { id: "search", keys: ["Ctrl+K"], does: "Search conversations", act: "focus" },
  { id: "new", keys: ["Ctrl+Shift+O"], does: "Begin a new conversation", act: "new" },
  { id: "send", keys: ["Enter"], does: "Send the message" },
  { id: "line", keys: ["Shift+Enter"], does: "Begin a new line in the message" },
  { id: "stop", keys: ["Escape"], does: "Stop the answer, or close what is open", act: "press" },
  {
    id: "previous-branch",
    keys: ["["],
    does: "Show the branch before, of the last message with branches",
    act: "press",
  },
  { id: "next-branch", keys: ["]"], does: "Show the next branch, of the last message with branches", act: "press" },
  { id: "move", keys: ["Tab", "Shift+Tab"], does: "Go to the next control, or the one before" },
];

/** What of a keyboard event decides. */
export interface Pressed {
  key: string;
  ctrlKey: boolean;
  metaKey: boolean;
  altKey: boolean;
  shiftKey: boolean;
}

/**
 * Returns the shortcut that a key means; null: none. `isWriting`: the focus is in a field, where single characters are text.
 * `areSinglesOn`: whether the user wants keys of one character (WCAG 2.1.4).
 */
export function shortcutOf(pressed: Pressed, isWriting: boolean, areSinglesOn: boolean): Shortcut | null {
  const name = nameOf(pressed);
  const found = SHORTCUTS.find((each) => each.act !== undefined && each.keys.includes(name));
  if (found === undefined) return null;
  const isSingle = name.length === 1;
  return isSingle && (isWriting || !areSinglesOn) ? null : found;
}

function nameOf({ key, ctrlKey, metaKey, altKey, shiftKey }: Pressed): string {
  if (altKey) return "";
  if (!ctrlKey && !metaKey) return key;
  return `Ctrl+${shiftKey ? "Shift+" : ""}${key.toUpperCase()}`;
}

/** Carries out a shortcut but `list`. Returns whether it did anything, so that the browser's own meaning is left out. */
export function carryOut(shortcut: Shortcut): boolean {
  if (shortcut.act === "new") {
    navigate("chat");
    focusControl("message");
    return true;
  }
  if (shortcut.act === "focus") {
    if (findControl(shortcut.id) === null && findOpener(shortcut.id) === null) navigate("chat");
    focusControl(shortcut.id);
    return true;
  }
  const control = shortcut.act === "press" ? findControl(shortcut.id) : null;
  control?.click();
  return control !== null;
}

/** Gives the focus to the control of a shortcut's id, as soon as it can be seen and used. */
export function focusControl(id: string): void {
  whenThere(id, (control) => control.focus());
}

/** Returns the last control of an id that can be seen and used; null: there is none. */
function findControl(id: string): HTMLElement | null {
  const controls = [...document.querySelectorAll<HTMLElement>(`[data-shortcut="${id}"]`)];
  return controls.findLast((each) => each.offsetParent !== null && !each.matches(":disabled")) ?? null;
}

/** Returns the control that opens what a control of an id lies in (`data-opens`), if that is closed; null: there is none. */
function findOpener(id: string): HTMLElement | null {
  const openers = [...document.querySelectorAll<HTMLElement>(`[data-opens="${id}"]`)];
  return openers.find((each) => each.offsetParent !== null) ?? null;
}

const FRAMES = 120;

// A view that was just opened may have to be loaded first.
function whenThere(id: string, act: (control: HTMLElement) => void, frames = FRAMES): void {
  const control = findControl(id);
  if (control !== null) act(control);
  else {
    findOpener(id)?.click();
    if (frames > 0) requestAnimationFrame(() => whenThere(id, act, frames - 1));
  }
}

const STORED = "roundhouse.single-keys";

/** Returns whether keys of one character are on; they are unless the user switched them off in this browser. */
export function areSingleKeysOn(): boolean {
  try {
    return localStorage.getItem(STORED) !== "off";
  } catch {
    return true;
  }
}

/** Switches keys of one character on or off, in this browser. */
export function setSingleKeys(isOn: boolean): void {
  try {
    localStorage.setItem(STORED, isOn ? "on" : "off");
  } catch {
    // Without storage they stay on.
  }
}

/**
 * Returns whether a key belongs to an input method that is composing a text. WebKit sends the Enter that confirms a word
 * after the composition's end, so that `isComposing` is false; its key code is 229.
 */
export function isOfInputMethod(event: Pick<KeyboardEvent, "isComposing" | "keyCode">): boolean {
  return event.isComposing || event.keyCode === 229;
}
