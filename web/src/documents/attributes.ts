/** Attributes of documents, written as `project=yard, year=2024`. Pure. */

export type Attributes = Record<string, string | number | boolean>;

/** Returns the attributes that a text names. Throws Error, for people, where a part has no `=` or no key. */
export function parseAttributes(text: string): Attributes {
  const attributes: Attributes = {};
  for (const part of text.split(",").map((each) => each.trim())) {
    if (part === "") continue;
    const equals = part.indexOf("=");
    const key = part.slice(0, Math.max(equals, 0)).trim();
    if (key === "") throw new Error(`Write attributes as key=value, separated by commas: ${part}`);
    attributes[key] = readValue(part.slice(equals + 1).trim());
  }
  return attributes;
}

/** Returns the attributes as they are written. */
export function attributesText(metadata: Record<string, unknown>): string {
  return Object.entries(metadata)
    .map(([key, value]) => `${key}=${typeof value === "string" ? value : JSON.stringify(value)}`)
    .join(", ");
}

// As a file in YAML would say it: quotes make a text of anything.
function readValue(text: string): string | number | boolean {
  if (text === "true" || text === "false") return text === "true";
  const quoted = /^(["'])(.*)\1$/.exec(text);
  if (quoted !== null) return quoted[2] ?? "";
  return /^-?\d+(\.\d+)?$/.test(text) ? Number(text) : text;
}
