/** A block of code: its language, copy, a switch for wrapped lines, colours; a diagram or a preview where it is one. */
import { toJsxRuntime } from "hast-util-to-jsx-runtime";
import { lazy, memo, type ReactNode, Suspense, useMemo, useState } from "react";
import { Fragment, jsx, jsxs } from "react/jsx-runtime";
import { Button } from "../../ui/controls";
import { CopyButton } from "../../ui/copy_button";
import { useIsGrowing } from "./growing";
import { useLazy } from "./use_lazy";

const Diagram = lazy(() => import("./diagram"));
const HtmlPreview = lazy(() => import("./html_preview"));
const SWITCH = "text-xs aria-pressed:bg-raised aria-pressed:text-text";
const loadHighlight = () => import("./highlight");

/** Characters above which code is shown without colours: they would take longer than a frame. */
const MOST_COLOURED = 40_000;

interface CodeBlockProps {
  code: string;
  /** As the fence names it; empty if it does not. */
  language: string;
}

export const CodeBlock = memo(function CodeBlock({ code, language }: CodeBlockProps) {
  const isGrowing = useIsGrowing();
  const [isWrapped, setWrapped] = useState(false);
  const [isShown, setShown] = useState(language === "mermaid");
  const drawn = isGrowing || !isShown ? null : drawnForm(code, language);
  return (
    <figure
      aria-label={`Code${language && `: ${language}`}`}
      className="m-0 overflow-hidden rounded-md border border-line bg-panel"
    >
      <figcaption className="flex flex-wrap items-center gap-1 border-b border-line px-3 text-xs text-faint">
        <span className="flex-1 py-1.5">{language || "text"}</span>
        {(language === "html" || language === "mermaid") && (
          <Button look="quiet" className={SWITCH} aria-pressed={isShown} onClick={() => setShown(!isShown)}>
            {language === "html" ? "Preview" : "Diagram"}
          </Button>
        )}
        <Button look="quiet" className={SWITCH} aria-pressed={isWrapped} onClick={() => setWrapped(!isWrapped)}>
          Wrap lines
        </Button>
        <CopyButton label="Copy code" className="text-xs" text={() => code} />
      </figcaption>
      {drawn ?? <Source code={code} language={language} isWrapped={isWrapped} />}
    </figure>
  );
});

function drawnForm(code: string, language: string): ReactNode {
  const waiting = <p className="p-3 text-sm text-faint">Drawing…</p>;
  if (language === "mermaid")
    return (
      <Suspense fallback={waiting}>
        <Diagram source={code} otherwise={<Source code={code} language={language} isWrapped={false} />} />
      </Suspense>
    );
  if (language === "html")
    return (
      <Suspense fallback={waiting}>
        <HtmlPreview html={code} />
      </Suspense>
    );
  return null;
}

function Source({ code, language, isWrapped }: CodeBlockProps & { isWrapped: boolean }) {
  const isPlain = useIsGrowing() || language === "" || code.length > MOST_COLOURED;
  const module = useLazy(isPlain ? null : loadHighlight);
  const coloured = useMemo(() => {
    const tree = isPlain ? null : (module?.highlight(code, language.toLowerCase()) ?? null);
    return tree === null ? code : toJsxRuntime(tree, { Fragment, jsx, jsxs });
  }, [module, code, language, isPlain]);
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: the keyboard scrolls it.
    <pre className="overflow-x-auto p-3 font-mono text-sm leading-normal" tabIndex={0}>
      <code className={isWrapped ? "whitespace-pre-wrap break-words" : undefined}>{coloured}</code>
    </pre>
  );
}
