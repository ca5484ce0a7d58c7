/** The frame of a view: its heading, and sections below it, in one column that scrolls. */
import type { ReactNode } from "react";
import { showCode } from "./controls";

export function ViewFrame({ title, children }: { title: string; children: ReactNode }) {
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls takes the focus, so that the keyboard can scroll it
    <section className="h-full overflow-y-auto" tabIndex={0} aria-label={title}>
      <div className="mx-auto flex max-w-6xl flex-col gap-section p-page pb-section">
        <h1 className="-mb-3 text-xl font-semibold break-words">{title}</h1>
        {children}
      </div>
    </section>
  );
}

/** A part of a view. `note`: one sentence below the heading. */
export function Section({ title, note, children }: { title: string; note?: string; children: ReactNode }) {
  return (
    // Lines of text end where the eye still finds the next one, however wide the window is.
    <section aria-label={title} className="flex min-w-0 flex-col gap-row [&>p]:max-w-[90ch]">
      <h2 className="text-lg font-semibold">{title}</h2>
      {note !== undefined && <p className="text-sm text-faint">{note}</p>}
      {children}
    </section>
  );
}

/** Names and values beside each other; entries without a value are left out, and texts have code in backticks. */
export function Facts({ entries }: { entries: readonly (readonly [string, ReactNode])[] }) {
  const shown = entries.filter(([, value]) => value !== null && value !== undefined && value !== "");
  return (
    <dl className="grid grid-cols-[minmax(7rem,auto)_1fr] gap-x-4 gap-y-1 text-sm">
      {shown.map(([name, value]) => (
        <div key={name} className="contents">
          <dt className="text-faint">{name}</dt>
          <dd className="min-w-0 max-w-[90ch] break-words">{typeof value === "string" ? showCode(value) : value}</dd>
        </div>
      ))}
    </dl>
  );
}

/** A label above its control. */
export function Field({ label, note, children }: { label: string; note?: string | undefined; children: ReactNode }) {
  return (
    // biome-ignore lint/a11y/noLabelWithoutControl: the control is the child
    <label className="flex min-w-0 flex-col gap-1 text-sm">
      <span>{label}</span>
      {children}
      {note !== undefined && <span className="text-xs text-faint">{note}</span>}
    </label>
  );
}

/** Classes of one thing among several: a model, a download, a GPU. */
export const CARD = "rounded-lg border border-line bg-panel p-card";

/** Classes of a field that is written in. */
export const INPUT =
  "min-h-9 w-full rounded-md border border-line bg-raised px-3 py-1.5 text-sm placeholder:text-faint";

/** Classes of a picker of files. */
export const FILE_INPUT =
  "max-w-full text-sm file:mr-3 file:min-h-9 file:rounded-md file:border file:border-line file:bg-raised file:px-3 file:hover:bg-panel";
