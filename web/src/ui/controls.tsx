/** Small controls that every view uses, on the browser's own elements. */
import { type ComponentProps, type ReactNode, useEffect, useId, useRef } from "react";
import { createPortal } from "react-dom";
import { Icon, type IconName } from "./icons";

/** `icon`: beside the words, which say all. */
type ButtonProps = ComponentProps<"button"> & { look?: "plain" | "main" | "danger" | "quiet"; icon?: IconName };

const LOOKS = {
  plain: "border border-line bg-raised hover:bg-panel",
  main: "bg-accent-ground text-on-accent hover:brightness-110",
  danger: "border border-bad text-bad hover:bg-panel",
  quiet: "text-faint hover:bg-panel hover:text-text",
};

export function Button({ look = "plain", icon, className = "", type = "button", children, ...rest }: ButtonProps) {
  return (
    <button
      type={type}
      className={`inline-flex min-h-9 items-center justify-center gap-1.5 rounded-md px-3 py-1 text-sm disabled:cursor-not-allowed disabled:opacity-60 ${LOOKS[look]} ${className}`}
      {...rest}
    >
      {icon !== undefined && <Icon name={icon} />}
      {children}
    </button>
  );
}

interface IconButtonProps extends ButtonProps {
  /** What the button does: its name for assistive technology, and its tooltip. */
  label: string;
  children: ReactNode;
}

export function IconButton({ label, className = "", ...rest }: IconButtonProps) {
  return <Button look="quiet" aria-label={label} title={label} className={`min-w-9 px-2 ${className}`} {...rest} />;
}

interface DialogProps {
  title: string;
  isOpen: boolean;
  onClose: () => void;
  children: ReactNode;
}

/**
 * A modal dialog, by the browser's own element: it keeps the focus, and Escape closes it. It stands in the page's body: a
 * modal dialog in a part of the page that is not shown would be invisible and block everything else.
 */
export function Dialog({ title, isOpen, onClose, children }: DialogProps) {
  const element = useRef<HTMLDialogElement>(null);
  const titleId = useId();
  useEffect(() => {
    const dialog = element.current;
    if (dialog === null) return;
    if (isOpen && !dialog.open) dialog.showModal();
    if (!isOpen && dialog.open) dialog.close();
  }, [isOpen]);
  return createPortal(
    <dialog
      ref={element}
      aria-labelledby={titleId}
      onClose={onClose}
      className="max-h-[90dvh] w-[min(42rem,94vw)] overflow-auto rounded-lg border border-line bg-ground p-4 backdrop:bg-black/50"
    >
      <div className="mb-3 flex items-center justify-between gap-4">
        <h2 id={titleId} className="text-lg font-semibold">
          {title}
        </h2>
        <IconButton label="Close" onClick={onClose}>
          <Icon name="close" />
        </IconButton>
      </div>
      {isOpen ? children : null}
    </dialog>,
    document.body,
  );
}

/** What went wrong, and what to do. Announced by assistive technology. */
export function ErrorNote({
  message,
  nextSteps = [],
  children,
}: {
  message: string;
  nextSteps?: string[];
  children?: ReactNode;
}) {
  return (
    <div role="alert" className="my-2 rounded-md border border-bad px-3 py-2 text-sm [&>*]:max-w-[90ch]">
      <p className="break-words">{showCode(message)}</p>
      {nextSteps.length > 0 && (
        <ul className="mt-1 list-disc pl-5 text-faint">
          {nextSteps.map((step) => (
            <li key={step}>{showCode(step)}</li>
          ))}
        </ul>
      )}
      {children}
    </div>
  );
}

/** Returns a text with what stands in backticks as code. */
export function showCode(text: string): ReactNode {
  const parts = text.split(/`([^`\n]+)`/);
  return parts.map((part, index) =>
    index % 2 === 0 ? (
      part
    ) : (
      // biome-ignore lint/suspicious/noArrayIndexKey: the parts of a text keep their places
      <code key={index} className="font-mono text-text">
        {part}
      </code>
    ),
  );
}

/** A share of a whole, 0 to 1, as a bar with its figures beside it. `share` null: not known, so there is no bar. */
export function Meter({ label, share, text }: { label: string; share: number | null; text: string }) {
  const percent = Math.round(Math.min(Math.max(share ?? 0, 0), 1) * 100);
  return (
    <div className="flex items-center gap-2 text-sm">
      <span className="min-w-24">{label}</span>
      {share !== null && (
        <meter className="h-2 min-w-0 flex-1" min={0} max={100} value={percent} aria-label={label}>
          {percent} %
        </meter>
      )}
      <span className="tabular-nums text-faint">{text}</span>
    </div>
  );
}

/** The command line that does the same as a view: `$ roundhouse status`. */
export function SameByCommand({ command }: { command: string }) {
  return (
    <p className="mt-4 text-sm text-faint">
      On the command line: <code className="rounded bg-panel px-1.5 py-0.5 font-mono text-text">{command}</code>
    </p>
  );
}
