/** Figures in words: sizes, times and rates, in one form in the whole page. */

const UNITS = ["bytes", "KiB", "MiB", "GiB", "TiB"] as const;

/** Returns a number of bytes, in the largest unit that leaves at least 1: `3.1 GiB`. */
export function bytesText(bytes: number): string {
  let value = bytes;
  let unit = 0;
  while (value >= 1024 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit === 0 ? value : value.toFixed(value < 100 ? 1 : 0)} ${UNITS[unit]}`;
}

/** Returns a size in MiB; null: `not known`. */
export function mibText(mib: number | null): string {
  return mib === null ? "not known" : bytesText(mib * 1024 * 1024);
}

/** Returns a length of time in seconds, in its two largest units: `2 min 5 s`. */
export function durationText(seconds: number): string {
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  if (whole < 86_400) return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
  return `${Math.floor(whole / 86_400)} d ${Math.floor((whole % 86_400) / 3600)} h`;
}

/** Returns a Unix time in seconds as the browser's locale writes it: the day only if it is not the day of `now` (Unix seconds). */
export function timeText(at: number, now: number = Date.now() / 1000): string {
  const time = new Date(at * 1000);
  const isToday = time.toDateString() === new Date(now * 1000).toDateString();
  return isToday ? time.toLocaleTimeString() : time.toLocaleString();
}

/** Returns a share of 0 to 1 in percent: `42 %`. */
export function percentText(share: number): string {
  return `${Math.round(share * 100)} %`;
}

/** Returns a count with its noun: `1 file`, `2 files`. */
export function countText(count: number, singular: string, plural = `${singular}s`): string {
  return `${count} ${count === 1 ? singular : plural}`;
}
