/** How long the gateway keeps conversations, in words. Pure. */

const UNITS: [string, number][] = [
  ["day", 86_400],
  ["hour", 3600],
  ["minute", 60],
  ["second", 1],
];

/** Returns a sentence for `retention_s` of the gateway's limits; undefined: it has not told them yet. */
export function sayRetention(seconds: number | undefined): string {
  if (seconds === undefined) return "The gateway keeps conversations for your tenant.";
  if (seconds === 0) return "This gateway keeps no conversations: keep them in this browser.";
  return `The gateway keeps conversations for your tenant, for ${sayPeriod(seconds)} after their last use.`;
}

/** Returns a period in the largest unit of which it has two, or a whole number: `30 days`, `36 hours`, `1 day`. */
function sayPeriod(seconds: number): string {
  const fits = ([, size]: [string, number]) => seconds >= 2 * size || seconds % size === 0;
  const [name, size] = UNITS.find((unit) => seconds >= unit[1] && fits(unit)) ?? ["second", 1];
  const count = Math.round(seconds / size);
  return `${count} ${name}${count === 1 ? "" : "s"}`;
}
