/** A model's text as Markdown. Nothing of it becomes HTML: every element is made by React, and raw HTML is shown as text. */
import { memo, useEffect, useMemo, useRef } from "react";
import ReactMarkdown, { type Options } from "react-markdown";
import remarkGfm from "remark-gfm";
import type { Annotation } from "../../api/items";
import { type Blocks, linkDefinitions, NO_BLOCKS, splitBlocks } from "./blocks";
import { remarkCitations, SourcesContext, sourcesOf } from "./citations";
import { allowedAddress, ELEMENTS } from "./elements";
import { hasFormula, markFormulas } from "./formulas";
import { GrowingContext } from "./growing";
import { completeBlock } from "./unfinished";
import { useLazy } from "./use_lazy";
import "./markdown.css";

interface MarkdownProps {
  text: string;
  /** Whether more text follows: only the last block is parsed anew for each piece. */
  isGrowing: boolean;
  /** Citations in the text. Empty while it grows. */
  annotations?: readonly Annotation[] | undefined;
}

const NONE: readonly Annotation[] = [];
const GFM = [remarkGfm];
const loadMath = () => import("./formula");

export const Markdown = memo(function Markdown({ text, isGrowing, annotations = NONE }: MarkdownProps) {
  const known = useRef<Blocks>(NO_BLOCKS);
  const split = useMemo(() => splitBlocks(text, known.current), [text]);
  useEffect(() => {
    known.current = split;
  }, [split]);
  const definitions = useMemo(() => linkDefinitions(split.blocks), [split]);
  const sources = useMemo(() => sourcesOf(annotations), [annotations]);
  // Blocks compare it as a text: equal numbers are no reason to parse them anew.
  const cited = [...sources.keys()].join(" ");
  return (
    <SourcesContext value={sources}>
      <div className="markdown flex flex-col gap-3 break-words leading-relaxed">
        {split.blocks.map((block, index) => (
          <Block
            // biome-ignore lint/suspicious/noArrayIndexKey: blocks only grow at the end, and a block keeps its place.
            key={index}
            text={definitions !== "" && block.includes("[") ? `${block}\n\n${definitions}` : block}
            isGrowing={isGrowing && index === split.blocks.length - 1}
            cited={cited}
          />
        ))}
      </div>
    </SourcesContext>
  );
});

interface BlockProps {
  text: string;
  isGrowing: boolean;
  /** Numbers of the sources, with spaces between them. */
  cited: string;
}

const Block = memo(function Block({ text, isGrowing, cited }: BlockProps) {
  const shown = isGrowing ? completeBlock(text) : text;
  const hasMath = hasFormula(shown);
  const math = useLazy(hasMath ? loadMath : null)?.remarkMath ?? null;
  const plugins = useMemo((): Options["remarkPlugins"] => {
    const numbers = new Set(cited.split(" ").filter(Boolean).map(Number));
    const citing = numbers.size > 0 ? [[remarkCitations, { numbers }] as const] : [];
    return [...GFM, ...(math === null ? [] : [math]), ...(citing as never[])];
  }, [math, cited]);
  return (
    <GrowingContext value={isGrowing}>
      <ReactMarkdown remarkPlugins={plugins} components={ELEMENTS} urlTransform={allowedAddress}>
        {math === null ? shown : markFormulas(shown)}
      </ReactMarkdown>
    </GrowingContext>
  );
});
