/** Listens for the page's keys, and shows the list of them. */
import { useEffect, useState } from "react";
import { Dialog } from "./controls";
import { areSingleKeysOn, carryOut, isOfInputMethod, SHORTCUTS, shortcutOf } from "./keys";

export function KeyCommands() {
  const [isOpen, setOpen] = useState(false);
  useEffect(() => {
    function onKeyDown(event: KeyboardEvent) {
      // An open dialog takes Escape itself, and covers what the other keys would press.
      if (event.defaultPrevented || isOfInputMethod(event) || document.querySelector("dialog[open]") !== null) return;
      const shortcut = shortcutOf(event, isWriting(event.target), areSingleKeysOn());
      if (shortcut === null) return;
      if (shortcut.act === "list") setOpen(true);
      else if (!carryOut(shortcut)) return;
      event.preventDefault();
    }
    addEventListener("keydown", onKeyDown);
    return () => removeEventListener("keydown", onKeyDown);
  }, []);
  return (
    <Dialog title="Keys" isOpen={isOpen} onClose={() => setOpen(false)}>
      <KeyList />
    </Dialog>
  );
}

/** Every key and what it does. */
export function KeyList() {
  return (
    <dl className="grid grid-cols-[auto_1fr] gap-x-4 gap-y-2 text-sm">
      {SHORTCUTS.map((each) => (
        <div key={each.id} className="contents">
          <dt className="whitespace-nowrap">
            {each.keys.map((key, place) => (
              <span key={key}>
                {place > 0 && ", "}
                <kbd className="rounded border border-line bg-panel px-1.5 py-0.5 font-mono text-xs">
                  {shownKey(key)}
                </kbd>
              </span>
            ))}
          </dt>
          <dd>{each.does}</dd>
        </div>
      ))}
    </dl>
  );
}

function shownKey(key: string): string {
  return /Mac|iPhone|iPad/.test(navigator.platform) ? key.replace("Ctrl+", "Cmd+") : key;
}

const TEXT_FIELDS =
  "input:not([type=checkbox], [type=radio], [type=file], [type=button]), textarea, select, [contenteditable]";

function isWriting(target: EventTarget | null): boolean {
  return target instanceof Element && target.matches(TEXT_FIELDS);
}
