/** Figures of an answer, in one line: tokens and times. */
import { memo } from "react";
import type { Item } from "../../api/items";
import { type AnswerFigures, figuresOf, sumFigures } from "../figures";
import { sayDuration } from "./reasoning";

/** Shows nothing for an answer whose engine told no usage. */
export const FiguresLine = memo(function FiguresLine({ items }: { items: readonly Item[] }) {
  const found = items.map(figuresOf).filter((each) => each !== null);
  const sum = sumFigures(found);
  return sum === null ? null : <p className="text-xs tabular-nums text-faint">{sayFigures(sum)}</p>;
});

/** Returns the figures as one line of text. */
export function sayFigures({ usage, firstTokenMs, tokensPerSecond }: AnswerFigures): string {
  const cached = usage.cachedTokens > 0 ? ` (${usage.cachedTokens} cached)` : "";
  const parts = [`${usage.inputTokens} tokens in${cached}`, `${usage.outputTokens} out`];
  if (tokensPerSecond !== null) parts.push(`${tokensPerSecond.toFixed(1)} tokens/s`);
  if (firstTokenMs !== null) parts.push(`first after ${sayDuration(firstTokenMs)}`);
  return parts.join(" · ");
}
