/** Formulas in Markdown: whether a text has any, and its marks in the form that remark-math reads. Pure. */

/** Returns whether a text may have a formula, so that KaTeX is needed. */
export function hasFormula(text: string): boolean {
  return /\$\$|\\\(|\\\[|```math/.test(text) || /(^|[^\\$])\$[^\s$](?:[^$\n]*[^\s$\\])?\$(?!\d)/.test(text);
}

/**
 * Returns a block with `\(...\)` and `\[...\]` written as `$...$` and `$$...$$`, with the marks of a `$$...$$` that is alone
 * on its line on lines of their own (without that, remark-math takes it for a part of the text), and with each single `$`
 * that is an amount of money escaped: a formula has no space inside of its marks and no digit after them. Code stays as it
 * is.
 */
export function markFormulas(block: string): string {
  if (/^ {0,3}(```|~~~)/.test(block)) return block;
  return block
    .split(/(```[\s\S]*?```|`+[^`]*`+)/)
    .map((piece, index) => (index % 2 === 1 ? piece : markPiece(piece)))
    .join("");
}

function markPiece(text: string): string {
  const marked = text
    .replace(/\\\[([\s\S]+?)\\\]/g, (_, inner: string) => `\n$$\n${inner.trim()}\n$$\n`)
    .replace(/\\\(([\s\S]+?)\\\)/g, (_, inner: string) => `$${inner.trim()}$`)
    .replace(
      /^( *)\$\$([^$\n]+)\$\$ *$/gm,
      (_, indent: string, inner: string) => `${indent}$$\n${indent}${inner.trim()}\n${indent}$$`,
    );
  return marked
    .split(/(\$\$[\s\S]*?\$\$)/)
    .map((piece, index) => (index % 2 === 1 ? piece : escapeAmounts(piece)))
    .join("");
}

function escapeAmounts(text: string): string {
  return text.replace(/\\\$|\$([^\s$](?:[^$\n]*[^\s$\\])?)\$(?!\d)|\$/g, (whole) => (whole === "$" ? "\\$" : whole));
}
