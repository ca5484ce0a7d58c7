/** A small curve of the last hour: drawn for the eye, and said in figures for everybody else. */

/** Values that the curve has room for: one for each minute. */
const SPAN = 60;
const HEIGHT = 24;
/** What is left free above and below, so that the line is whole. */
const EDGE = 2;

interface SparklineProps {
  /** What the figures are: `tokens per second`. */
  name: string;
  /** Oldest first, at most 60; null: not known, which leaves a gap. */
  values: readonly (number | null)[];
  /** Returns a figure in words. */
  textOf: (value: number) => string;
  className?: string;
}

export function Sparkline({ name, values, textOf, className = "" }: SparklineProps) {
  return (
    <svg
      role="img"
      aria-label={sparklineText(name, values, textOf)}
      viewBox={`0 0 ${SPAN} ${HEIGHT}`}
      preserveAspectRatio="none"
      className={`h-6 fill-none stroke-accent ${className}`}
      strokeLinecap="round"
      strokeLinejoin="round"
    >
      <path d={`M0 ${HEIGHT - EDGE}H${SPAN}`} className="stroke-line" vectorEffect="non-scaling-stroke" />
      <path d={sparklinePath(values)} strokeWidth="2" vectorEffect="non-scaling-stroke" />
    </svg>
  );
}

/** Returns the curve's path, the newest value at the right end. A value between two gaps is a point. */
export function sparklinePath(values: readonly (number | null)[]): string {
  const most = mostOf(values) || 1;
  let path = "";
  let isDrawing = false;
  for (const [index, value] of values.entries()) {
    if (value === null) {
      isDrawing = false;
      continue;
    }
    const x = SPAN - values.length + index + 0.5;
    const y = HEIGHT - EDGE - (value / most) * (HEIGHT - 2 * EDGE);
    path += isDrawing ? `L${x} ${y.toFixed(1)}` : `M${x} ${y.toFixed(1)}h0`;
    isDrawing = true;
  }
  return path;
}

/** Returns the curve in words: `tokens per second, last hour: now 41, most 60`. */
export function sparklineText(
  name: string,
  values: readonly (number | null)[],
  textOf: (value: number) => string,
): string {
  const now = values.at(-1) ?? null;
  const most = mostOf(values);
  if (most === null) return `${name}, last hour: not known`;
  return `${name}, last hour: now ${now === null ? "not known" : textOf(now)}, most ${textOf(most)}`;
}

/** Returns the largest value; null: none is known. */
export function mostOf(values: readonly (number | null)[]): number | null {
  const known = values.filter((value) => value !== null);
  return known.length === 0 ? null : Math.max(...known);
}
