/** Downloads in words. Pure. */
import { bytesText, countText, durationText, mibText } from "../../ui/figures";
import {
  type DeviceFit,
  type Download,
  type InspectedModel,
  isRunning,
  type ModelFile,
  type OfferedRepository,
} from "./downloads";

/**
 * Returns how far a download is: `12.0 MiB of 3.1 GiB, 5.0 MiB per second, 2 min 5 s left`, or how long it took. `now`: Unix
 * time in seconds.
 */
export function progressText(download: Download, now: number): string {
  const took = durationText((download.ended_at ?? now) - download.created_at);
  if (download.total_bytes === 0)
    return isRunning(download) ? `${download.waiting ?? "The source is asked for its files."} ${took} so far` : "";
  const parts = [`${bytesText(download.done_bytes)} of ${bytesText(download.total_bytes)}`];
  if (isRunning(download)) {
    if (download.waiting !== null) parts.push(download.waiting);
    else {
      if (download.bytes_per_s !== null) parts.push(`${bytesText(Math.round(download.bytes_per_s))} per second`);
      if (download.remaining_s !== null) parts.push(`${durationText(download.remaining_s)} left`);
    }
    parts.push(`${took} so far`);
  } else parts.push(`in ${took}`);
  return parts.join(", ");
}

/** Returns what an inspection found: files, size, what is missing, and room. */
export function inspectionText({ inspection }: InspectedModel): string {
  const here = inspection.missing_bytes === 0 ? "all of it is here" : `${bytesText(inspection.missing_bytes)} to fetch`;
  const files = countText(inspection.files.length, "file");
  return `${files}, ${bytesText(inspection.total_bytes)}; ${here}; ${bytesText(inspection.free_bytes)} are free for downloads`;
}

/** Returns what is known of a found repository: `3 models, 2.3 GiB to 8.1 GiB; 48210 downloads a month; licence mit`. */
export function repositoryText({ choices, downloads, licence }: OfferedRepository): string {
  const sizes = choices.map((choice) => bytesText(choice.size));
  const range = sizes.length < 2 ? sizes : [`${sizes[0]} to ${sizes.at(-1)}`];
  const parts = [[countText(choices.length, "model"), ...range].join(", ")];
  if (downloads !== null) parts.push(`${countText(downloads, "download")} a month`);
  if (licence !== null) parts.push(`licence ${licence}`);
  return parts.join("; ");
}

/** Returns which models use a file, or why none can. */
export function useText({ used_by, reason }: Pick<ModelFile, "used_by" | "reason">): string {
  if (used_by.length > 0) return `used by ${used_by.join(", ")}`;
  return reason === null ? "used by no model" : `used by no model: ${reason}`;
}

/** Returns whether a model fits on a device, and beside what. */
export function fitText(device: DeviceFit): string {
  const where = device.gpus.length === 0 ? "main memory" : `GPU ${device.gpus.join(" and ")}`;
  const needs = `needs ${mibText(device.needed_mib)}`;
  const free = device.free_mib === null ? "" : ` of ${mibText(device.free_mib)} free`;
  const beside = device.beside.length > 0 ? ` beside ${device.beside.join(", ")}` : "";
  if (device.fits) return `${where}: fits${beside}; ${needs}${free}`;
  const alone = device.fits_alone ? "fits once other models are unloaded" : "does not fit";
  return `${where}: ${alone}; ${needs}${free}${device.reason === null ? "" : `. ${device.reason}`}`;
}
