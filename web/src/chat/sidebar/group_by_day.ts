/** Groups of a list of conversations by the time of their last use. Pure. */
import { type Conversation, usedAt } from "../conversations";

export interface DayGroup {
  label: string;
  conversations: Conversation[];
}

const DAY_S = 86_400;

/** Returns the groups that are not empty, in order. `now`: Unix seconds. Days begin at midnight in the browser's time. */
export function groupByDay(conversations: readonly Conversation[], now: number): DayGroup[] {
  const midnight = new Date(now * 1000).setHours(0, 0, 0, 0) / 1000;
  const bounds: [string, number][] = [
    ["Today", midnight],
    ["Yesterday", midnight - DAY_S],
    ["Last 7 days", midnight - 7 * DAY_S],
    ["Last 30 days", midnight - 30 * DAY_S],
    ["Older", Number.NEGATIVE_INFINITY],
  ];
  const groups = bounds.map(([label]): DayGroup => ({ label, conversations: [] }));
  for (const conversation of conversations) {
    const index = bounds.findIndex(([, begin]) => usedAt(conversation) >= begin);
    groups[index]?.conversations.push(conversation);
  }
  return groups.filter((group) => group.conversations.length > 0);
}
