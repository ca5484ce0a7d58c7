/** Formulas by KaTeX, with its own style sheet and fonts. Loaded when the first text with a formula is shown. */
import "katex/dist/katex.min.css";
import katex from "katex";
import { useLayoutEffect, useRef, useState } from "react";
import remarkMath from "remark-math";

export { remarkMath };

/** Commands whose MathML has a style attribute, which the page's policy forbids. */
const STYLED = /\\(pmb|fcolorbox|fbox|boxed)(?![a-zA-Z])/;

/**
 * A formula. KaTeX makes its elements itself, without HTML. `trust: false` keeps what a formula could do beside being one
 * (`\href`, `\htmlClass`, `\includegraphics`) from having an effect; `maxExpand` and `maxSize` keep it from growing without
 * an end. What KaTeX cannot read is shown as it is.
 */
export default function Formula({ source, isDisplayed }: { source: string; isDisplayed: boolean }) {
  const element = useRef<HTMLSpanElement>(null);
  const [error, setError] = useState<string | null>(null);
  useLayoutEffect(() => {
    if (element.current === null) return;
    try {
      katex.render(source, element.current, {
        displayMode: isDisplayed,
        output: STYLED.test(source) ? "html" : "htmlAndMathml",
        throwOnError: true,
        strict: "ignore",
        trust: false,
        maxExpand: 500,
        maxSize: 20,
      });
      setError(null);
    } catch (problem) {
      element.current.textContent = source;
      setError(problem instanceof Error ? problem.message : String(problem));
    }
  }, [source, isDisplayed]);
  const look = error === null ? "" : "font-mono text-sm text-warn";
  return <span ref={element} className={`${isDisplayed ? "block" : ""} ${look}`} title={error ?? undefined} />;
}
