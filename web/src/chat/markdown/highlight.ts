/** Colours of code, by class names alone (theme of highlight.css). Loaded when the first code block is shown. */
import "./highlight.css";
import type { Root } from "hast";
import { common, createLowlight } from "lowlight";

const lowlight = createLowlight(common);

/** Returns code as elements with the classes `hljs-...`; null for a language that is not among the common ones. */
export function highlight(code: string, language: string): Root | null {
  return lowlight.registered(language) ? lowlight.highlight(language, code) : null;
}
