/** A model's text as Markdown. Nothing of it becomes HTML: every element is made by React, and raw HTML is shown as text. */
import { marked } from "marked";
import { memo, useMemo } from "react";
import ReactMarkdown, { type Components, defaultUrlTransform } from "react-markdown";
import remarkGfm from "remark-gfm";

interface MarkdownProps {
  text: string;
  /** Whether more text follows: only the last block is parsed anew for each piece. */
  isGrowing: boolean;
}

export const Markdown = memo(function Markdown({ text, isGrowing }: MarkdownProps) {
  const blocks = useMemo(() => splitBlocks(text), [text]);
  return (
    <div className="markdown flex flex-col gap-3 break-words leading-relaxed">
      {blocks.map((block, index) => (
        // biome-ignore lint/suspicious/noArrayIndexKey: blocks only grow at the end, and a block keeps its place.
        <Block key={index} text={block} isGrowing={isGrowing && index === blocks.length - 1} />
      ))}
    </div>
  );
});

/** Returns the top-level blocks of Markdown, whose sum is the text. A growing text changes its last blocks alone. */
export function splitBlocks(text: string): string[] {
  return marked
    .lexer(text, { gfm: true })
    .map((token) => token.raw)
    .filter((raw) => raw.trim() !== "");
}

const COMPONENTS: Components = {
  a: ({ href, children }) => (
    <a href={href} target="_blank" rel="noopener noreferrer nofollow" className="text-accent underline">
      {children}
    </a>
  ),
  // A model can send what it has read away by the address of an image, so none is loaded before it is clicked.
  img: ({ src, alt }) => (
    <a
      href={typeof src === "string" ? src : undefined}
      target="_blank"
      rel="noopener noreferrer nofollow"
      className="text-accent underline"
    >
      Image: {alt || src}
    </a>
  ),
};

const Block = memo(function Block({ text }: { text: string; isGrowing: boolean }) {
  return (
    <ReactMarkdown remarkPlugins={[remarkGfm]} components={COMPONENTS} urlTransform={defaultUrlTransform}>
      {text}
    </ReactMarkdown>
  );
});
