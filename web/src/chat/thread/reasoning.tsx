/** What a model thought: open while nothing else comes, folded once the answer has begun. */
import { useState } from "react";
import { type Item, textOf } from "../../api/items";
import { Markdown } from "../markdown/markdown";

interface ReasoningProps {
  item: Item;
  /** Whether the thoughts still come. */
  isRunning: boolean;
  /** How long they took, in milliseconds; null: they come, or the item itself has it. */
  tookMs: number | null;
}

export function Reasoning({ item, isRunning, tookMs }: ReasoningProps) {
  const [chosen, setChosen] = useState<boolean | null>(null);
  const text = textOf(item) || textOf({ content: item.summary ?? [] });
  if (text === "") return isRunning ? <p className="text-sm text-faint">Thinking…</p> : null;
  const isOpen = chosen ?? isRunning;
  return (
    <details
      open={isOpen}
      onToggle={(event) => event.currentTarget.open !== isOpen && setChosen(event.currentTarget.open)}
      className="rounded-md border border-line px-3 py-1 text-sm text-faint"
    >
      <summary className="cursor-pointer py-1">
        {sayThoughts(isRunning, tookMs ?? item.answer?.took_ms ?? null)}
      </summary>
      {isOpen && <Markdown text={text} isGrowing={isRunning} />}
    </details>
  );
}

function sayThoughts(isRunning: boolean, tookMs: number | null): string {
  if (isRunning) return "Thinking…";
  return tookMs === null ? "Thoughts" : `Thought for ${sayDuration(tookMs)}`;
}

/** Returns a duration as a person says it: `0.4 s`, `12 s`, `2 min 5 s`. */
export function sayDuration(ms: number): string {
  const seconds = ms / 1000;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  const whole = Math.round(seconds);
  return whole < 60 ? `${whole} s` : `${Math.floor(whole / 60)} min ${whole % 60} s`;
}
