/** Which addresses of a model's text may become links, and which images are shown. Pure. */

/** Returns the address of a link if its scheme is one that only shows something: http, https or mailto. Null for any other. */
export function safeLink(address: string | null | undefined): string | null {
  const url = parse(address);
  return url !== null && ["http:", "https:", "mailto:"].includes(url.protocol) ? (address ?? null) : null;
}

/** Returns whether an image holds its own data, so that showing it asks no host. */
export function isDataImage(address: string): boolean {
  return /^data:image\/(png|jpeg|gif|webp|avif|bmp|svg\+xml)[;,]/i.test(address);
}

/** Returns the host that an image would be asked from; null for an address that names none. */
export function hostOf(address: string): string | null {
  const url = parse(address);
  return url !== null && (url.protocol === "http:" || url.protocol === "https:") ? url.host : null;
}

function parse(address: string | null | undefined): URL | null {
  if (!address) return null;
  try {
    return new URL(address);
  } catch {
    return null;
  }
}
