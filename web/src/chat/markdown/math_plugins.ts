/** Formulas by KaTeX, with its own style sheet and fonts. Loaded when the first text with a formula is shown. */
import "katex/dist/katex.min.css";
import rehypeKatex from "rehype-katex";
import remarkMath from "remark-math";
import type { PluggableList } from "unified";

export interface MathPlugins {
  remark: PluggableList;
  rehype: PluggableList;
}

/**
 * `trust: false` keeps what a formula could do beside being one (`\href`, `\htmlClass`, `\includegraphics`) from having
 * an effect; `maxExpand` and `maxSize` keep a formula from growing without an end.
 */
export const MATH_PLUGINS: MathPlugins = {
  remark: [remarkMath],
  rehype: [[rehypeKatex, { trust: false, strict: "ignore", maxExpand: 500, maxSize: 20, output: "htmlAndMathml" }]],
};
