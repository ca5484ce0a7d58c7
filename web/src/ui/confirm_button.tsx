/** A button for what cannot be taken back: it asks once more, in its own place. */
import { type ReactNode, useEffect, useRef, useState } from "react";
import { Button } from "./controls";
import type { IconName } from "./icons";

interface ConfirmButtonProps {
  /** What the button says, such as `Remove`. */
  children: ReactNode;
  /** Name for assistive technology, where `children` alone does not say what is concerned. */
  label?: string;
  /** What is asked: `Remove the file for good?` */
  question: string;
  icon?: IconName;
  disabled?: boolean;
  onConfirm: () => void;
}

/** Escape, or the focus going elsewhere, takes the question back. */
export function ConfirmButton({
  children,
  label,
  question,
  icon = "remove",
  disabled = false,
  onConfirm,
}: ConfirmButtonProps) {
  const [isAsking, setAsking] = useState(false);
  const first = useRef<HTMLButtonElement>(null);
  const confirm = useRef<HTMLButtonElement>(null);
  const wasAsking = useRef(false);
  useEffect(() => {
    if (isAsking) confirm.current?.focus();
    else if (wasAsking.current) first.current?.focus();
    wasAsking.current = isAsking;
  }, [isAsking]);
  if (!isAsking) {
    return (
      <Button
        ref={first}
        look="danger"
        icon={icon}
        aria-label={label}
        disabled={disabled}
        onClick={() => setAsking(true)}
      >
        {children}
      </Button>
    );
  }
  return (
    // biome-ignore lint/a11y/useSemanticElements: a fieldset would need a legend, and be laid out as a block
    <span
      role="group"
      aria-label={question}
      className="inline-flex flex-wrap items-center gap-2 text-sm"
      onKeyDown={(event) => {
        if (event.key === "Escape") {
          event.stopPropagation();
          setAsking(false);
        }
      }}
    >
      {question}
      <Button
        ref={confirm}
        look="danger"
        onClick={() => {
          setAsking(false);
          onConfirm();
        }}
      >
        Yes
      </Button>
      <Button onClick={() => setAsking(false)}>No</Button>
    </span>
  );
}
