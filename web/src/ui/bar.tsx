/**
 * The page's one bar: the way between views, and what the shown view adds. On a phone, what has no room beside the title
 * is in menus.
 */
import { createContext, type ReactNode, use, useEffect, useId, useRef, useState } from "react";
import { createPortal } from "react-dom";
import { Button } from "./controls";

const SlotContext = createContext<HTMLElement | null>(null);

/** The bar with its `ways`, above `children`, which fill the rest of the window. */
export function BarFrame({ ways, children }: { ways: ReactNode; children: ReactNode }) {
  const [slot, setSlot] = useState<HTMLElement | null>(null);
  return (
    <>
      <header className="relative flex min-h-11 items-center gap-1 border-b border-line px-3 py-1 max-md:px-1">
        {ways}
        <div ref={setSlot} className="flex min-w-0 flex-1 items-center justify-end gap-1" />
      </header>
      <SlotContext value={slot}>{children}</SlotContext>
    </>
  );
}

/** Shows its children in the bar, after the ways between views. */
export function InBar({ children }: { children: ReactNode }) {
  const slot = use(SlotContext);
  return slot === null ? null : createPortal(children, slot);
}

interface BarMenuProps {
  /** What the menu is: its button's name for assistive technology. */
  label: string;
  /** What the button shows. */
  face: ReactNode;
  /** On which side of the window the menu opens. */
  side: "left" | "right";
  children: ReactNode;
}

/** Controls that stand in the bar, and on a phone in a menu behind a button. */
export function BarMenu({ label, face, side, children }: BarMenuProps) {
  const [isOpen, setOpen] = useState(false);
  const id = useId();
  const element = useRef<HTMLDivElement>(null);
  useEffect(() => {
    if (!isOpen) return;
    // Safari gives a button that is pressed no focus, so that there is none to leave.
    const close = ({ target }: Event) => {
      if (target instanceof Node && !element.current?.contains(target)) setOpen(false);
    };
    document.addEventListener("pointerdown", close);
    return () => document.removeEventListener("pointerdown", close);
  }, [isOpen]);
  const place = `${side === "left" ? "left-1" : "right-1"} flex flex-col items-stretch`;
  return (
    // biome-ignore lint/a11y/noStaticElementInteractions: it hears of what happens to the controls in it.
    <div
      ref={element}
      className="shrink-0 md:contents"
      onBlur={({ relatedTarget }) => {
        // Without a place where the focus goes, it is no key that moves it.
        if (relatedTarget !== null && !element.current?.contains(relatedTarget)) setOpen(false);
      }}
      onKeyDown={(event) => {
        if (event.key !== "Escape" || !isOpen) return;
        event.preventDefault();
        setOpen(false);
        element.current?.querySelector("button")?.focus();
      }}
    >
      <Button
        look="quiet"
        className="px-2 md:hidden"
        aria-label={label}
        aria-expanded={isOpen}
        aria-controls={id}
        onClick={() => setOpen(!isOpen)}
      >
        {face}
      </Button>
      {/* biome-ignore lint/a11y/noStaticElementInteractions: the same. */}
      {/* biome-ignore lint/a11y/useKeyWithClickEvents: a key that presses a control in it is a click, too. */}
      <div
        id={id}
        onClick={() => setOpen(false)}
        className={`${isOpen ? `max-md:absolute max-md:top-full ${place}` : "max-md:hidden"} z-20 gap-1 max-md:min-w-44 max-md:rounded-lg max-md:border max-md:border-line max-md:bg-ground max-md:p-1 md:contents`}
      >
        {children}
      </div>
    </div>
  );
}
