import { afterEach, expect, test } from "vitest";
import { areSingleKeysOn, carryOut, isOfInputMethod, type Pressed, SHORTCUTS, setSingleKeys, shortcutOf } from "./keys";

const PLAIN = { ctrlKey: false, metaKey: false, altKey: false, shiftKey: false };

function idOf(pressed: Partial<Pressed> & { key: string }, isWriting = false, areSinglesOn = true): string | undefined {
  return shortcutOf({ ...PLAIN, ...pressed }, isWriting, areSinglesOn)?.id;
}

afterEach(() => {
  document.body.replaceChildren();
  localStorage.clear();
});

test("single characters are keys only where nothing is written, and unless they are off", () => {
  expect([idOf({ key: "?", shiftKey: true }), idOf({ key: "]" })]).toEqual(["keys", "next-branch"]);
  expect([idOf({ key: "?" }, true), idOf({ key: "?" }, false, false)]).toEqual([undefined, undefined]);
  expect([idOf({ key: "k", ctrlKey: true }, true, false), idOf({ key: "k", metaKey: true })]).toEqual([
    "search",
    "search",
  ]);
  expect(idOf({ key: "O", ctrlKey: true, shiftKey: true })).toBe("new");
  expect([idOf({ key: "o", ctrlKey: true }), idOf({ key: "k", altKey: true, ctrlKey: true })]).toEqual([
    undefined,
    undefined,
  ]);
  expect([idOf({ key: "Escape" }, true), idOf({ key: "Enter" })]).toEqual(["stop", undefined]);
});

test("no two keys are the same", () => {
  const keys = SHORTCUTS.flatMap((each) => each.keys);
  expect(new Set(keys).size).toBe(keys.length);
});

test("a key presses the last control of its id that can be used", () => {
  const pressed: number[] = [];
  for (const [place, isDisabled] of [false, false, true].entries()) {
    const button = document.createElement("button");
    button.dataset.shortcut = "next-branch";
    button.disabled = isDisabled;
    button.addEventListener("click", () => pressed.push(place));
    // jsdom lays nothing out.
    Object.defineProperty(button, "offsetParent", { value: document.body });
    document.body.append(button);
  }
  const next = SHORTCUTS.find((each) => each.id === "next-branch");
  expect(next !== undefined && carryOut(next)).toBe(true);
  expect(pressed).toEqual([1]);
  document.body.replaceChildren();
  expect(next !== undefined && carryOut(next)).toBe(false);
});

test("the choice of single keys is kept", () => {
  expect(areSingleKeysOn()).toBe(true);
  setSingleKeys(false);
  expect(areSingleKeysOn()).toBe(false);
});

test("a key of an input method is not the page's, also where the browser tells it after the composition", () => {
  const key = (init: KeyboardEventInit) => new KeyboardEvent("keydown", { key: "Enter", ...init });
  expect(isOfInputMethod(key({ keyCode: 13 }))).toBe(false);
  expect(isOfInputMethod(key({ keyCode: 13, isComposing: true }))).toBe(true);
  expect(isOfInputMethod(key({ keyCode: 229 }))).toBe(true);
});
