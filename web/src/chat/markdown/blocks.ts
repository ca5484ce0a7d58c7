/** Markdown split into its top-level blocks, so that a growing text has only its last block parsed and shown anew. Pure. */
import remarkGfm from "remark-gfm";
import remarkParse from "remark-parse";
import { unified } from "unified";

/** A text and its blocks. */
export interface Blocks {
  text: string;
  /** Source of each top-level block, in order. Blank lines between them are left out. */
  blocks: readonly string[];
  /** Offset in `text` of the last block: nothing before it changes while the text grows. */
  lastStart: number;
}

export const NO_BLOCKS: Blocks = { text: "", blocks: [], lastStart: 0 };

const PARSER = unified().use(remarkParse).use(remarkGfm).freeze();

/**
 * Returns the blocks of a text, with each end of a line as `\n`. `before`: those of an earlier text, whose finished blocks
 * are taken over if `source` continues it.
 */
export function splitBlocks(source: string, before: Blocks = NO_BLOCKS): Blocks {
  const text = source.replace(/\r\n?/g, "\n");
  if (text === before.text) return before;
  // A footnote is drawn at the end of its block, wherever the block refers to it.
  if (/^\[\^[^\]\s]+\]:/m.test(text)) return { text, blocks: [text], lastStart: 0 };
  const goesOn = before.lastStart > 0 && text.startsWith(before.text);
  const start = goesOn ? before.lastStart : 0;
  const blocks = goesOn ? before.blocks.slice(0, -1) : [];
  let lastStart = start;
  let isMathOpen = false;
  for (const { type, position } of PARSER.parse(text.slice(start)).children) {
    if (position === undefined) continue;
    const { start: first, end: last } = position;
    // From the start of the line: a node leaves out the spaces before it, which its other lines are measured by.
    const blockStart = start + (first.offset ?? 0) - (first.column - 1);
    let end = start + (last.offset ?? 0);
    // The end of a line says that it is complete; a blank line is no part of the block.
    if (text[end] === "\n" && text[end + 1] !== "\n") end += 1;
    const raw = text.slice(blockStart, end);
    if (isMathOpen) blocks[blocks.length - 1] = text.slice(lastStart, end);
    else {
      blocks.push(raw);
      lastStart = blockStart;
    }
    // Blank lines do not end a formula, which only `$$` does.
    if (type !== "code" && opensMath(raw)) isMathOpen = !isMathOpen;
  }
  return { text, blocks, lastStart };
}

/** Returns the definitions of links (`[name]: address`) of all blocks: a block may use those of another one. */
export function linkDefinitions(blocks: readonly string[]): string {
  return blocks.filter((block) => /^ {0,3}\[[^\]^][^\]]*\]:[ \t]*\S/.test(block)).join("\n");
}

/** Returns whether a block has an odd number of `$$` outside of code: a formula begins, or ends, in it. */
function opensMath(raw: string): boolean {
  return (raw.replace(/`[^`]*`/g, "").split("$$").length - 1) % 2 === 1;
}
