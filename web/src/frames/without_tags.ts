/** HTML within the source of a diagram: Mermaid would parse it before it cleans it. Pure. */

/** Returns a source whose tags, but the plainest ones without attributes, are text. Arrows and `<<interface>>` stay. */
export function withoutTags(source: string): string {
  return source.replace(/(?<!<)<(?=[a-z!/?])(?!\/?(?:br|b|i|em|strong|sub|sup|code)\s*\/?>)/gi, "\u2039");
}
