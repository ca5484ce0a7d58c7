/**
 * The end of a Markdown text that is still growing, made calm: what a few more characters will turn into something else
 * is completed, or held back until it is clear. Pure.
 */

/** Returns the last block of a growing text as it is shown meanwhile. */
export function completeBlock(block: string): string {
  if (/^ {0,3}(```|~~~)/.test(block)) return block;
  const formula = block.lastIndexOf("$$");
  if (formula >= 0 && isOpen(block, "$$")) return completeText(block.slice(0, formula));
  const held = holdBackLine(block);
  if (/^ {0,3}\|/.test(held)) return completeTable(held);
  return completeText(held);
}

/** Leaves out a last line that does not say yet what it is: the beginning of a fence, a marker, an underline. */
function holdBackLine(block: string): string {
  const start = block.lastIndexOf("\n") + 1;
  const isMarker = /^\s*(`{1,2}|~{1,2}|[-*+=_#>]+|\d+[.)]?|\$)\s*$/.test(block.slice(start));
  return isMarker ? block.slice(0, start).replace(/\n$/, "") : block;
}

/** A table is shown as one from its first line that is complete, and a row once its line is. */
function completeTable(block: string): string {
  const [head = "", delimiters, ...rows] = block.split("\n");
  if (delimiters === undefined) return "";
  const columns = head.replace(/\\\|/g, "").split("|").length - (/\|\s*$/.test(head) ? 2 : 1);
  if (/^[\s|:-]*$/.test(delimiters) && rows.length === 0) return `${head}\n${"| --- ".repeat(Math.max(columns, 1))}|`;
  return [head, delimiters, ...rows.slice(0, -1), completeText(rows.at(-1) ?? "")].join("\n");
}

/** Closes what is open in the last line of a text: code, links, emphasis. */
function completeText(text: string): string {
  const start = text.lastIndexOf("\n") + 1;
  const before = text.slice(0, start);
  let line = text.slice(start);
  if (isOpen(line.replace(/``+/g, ""), "`")) return `${before}${line}\``;
  const code: string[] = [];
  // Marks within code mean nothing.
  line = line.replace(/(`+)[^`]+\1/g, (whole) => `\u{E000}${code.push(whole) - 1}\u{E001}`);
  line = closeEmphasis(completeLink(line));
  return before + line.replace(/\u{E000}(\d+)\u{E001}/gu, (_, index: string) => code[Number(index)] ?? "");
}

/** Shows an unfinished link by its text alone, and an unfinished image not at all. */
function completeLink(line: string): string {
  return line
    .replace(/!\[[^\]]*(\](\([^)]*)?)?$/, "")
    .replace(/\[([^\]]*)\]\([^)]*$/, "$1")
    .replace(/\[([^\]]*)$/, "$1");
}

function closeEmphasis(line: string): string {
  const open: string[] = [];
  for (const [mark] of line.replace(/^\s*[*+-]\s/, "").matchAll(/\\.|\*{1,3}|~~|__/g)) {
    if (mark.startsWith("\\")) continue;
    if (open.at(-1) === mark) open.pop();
    else open.push(mark);
  }
  let closed = line;
  for (const mark of open.reverse()) {
    // A mark with nothing after it yet may become another one.
    if (closed.endsWith(mark)) closed = closed.slice(0, -mark.length);
    else if (new RegExp(`(^|[^*~_])${mark.replace(/\*/g, "\\*")}[^\\s*~_]`).test(closed))
      closed = closed.trimEnd() + mark;
  }
  return closed;
}

function isOpen(text: string, mark: string): boolean {
  return (text.split(mark).length - 1) % 2 === 1;
}
