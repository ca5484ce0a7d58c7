/** The elements that Markdown becomes. Every one is made by React: what a text can do is what is listed here. */
import type { Element, ElementContent } from "hast";
import { lazy, type ReactNode, Suspense } from "react";
import type { Components } from "react-markdown";
import { hostOf, isDataImage, safeLink } from "./addresses";
import { Citation } from "./citations";
import { CodeBlock } from "./code_block";

const Formula = lazy(() => import("./formula"));
const LINK = "break-words text-accent underline";
const REL = "noopener noreferrer nofollow";

/** Returns an address as it is if it may become a link or a shown image, else nothing. For react-markdown. */
export function allowedAddress(address: string, name: string): string | null {
  if (name === "src") return isDataImage(address) || hostOf(address) !== null ? address : null;
  return safeLink(address);
}

export const ELEMENTS: Components = {
  a: ({ href, children }) => {
    const link = safeLink(href);
    return link === null ? (
      <span>{children}</span>
    ) : (
      <a href={link} target="_blank" rel={REL} className={LINK}>
        {children}
      </a>
    );
  },
  img: ({ src, alt }) => <Picture source={typeof src === "string" ? src : ""} description={alt ?? ""} />,
  pre: ({ node, children }) => {
    const code = node?.children.find((child): child is Element => child.type === "element" && child.tagName === "code");
    if (code === undefined) return <pre>{children}</pre>;
    const [text, language] = [textIn(code).replace(/\n$/, ""), languageOf(code)];
    return language === "math" ? formula(text, true) : <CodeBlock code={text} language={language} />;
  },
  code: ({ node, children }) =>
    node !== undefined && languageOf(node) === "math" ? formula(textIn(node), false) : <code>{children}</code>,
  table: ({ children }) => (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: the keyboard scrolls it.
    <figure className="overflow-x-auto" aria-label="Table" tabIndex={0}>
      <table className="w-max max-w-none border-collapse text-sm">{children}</table>
    </figure>
  ),
  input: ({ checked }) => (
    <input type="checkbox" checked={checked === true} readOnly disabled aria-label={checked ? "Done" : "Not done"} />
  ),
  sup: ({ node, children }) => {
    const number = Number(node?.properties.dataCitation ?? Number.NaN);
    return Number.isNaN(number) ? <sup>{children}</sup> : <Citation number={number}>{children}</Citation>;
  },
  // The conversation's title is the heading above them.
  h1: ({ children }) => <h2>{children}</h2>,
  h2: ({ children }) => <h3>{children}</h3>,
  h3: ({ children }) => <h4>{children}</h4>,
  h4: ({ children }) => <h5>{children}</h5>,
  h5: ({ children }) => <h6>{children}</h6>,
  h6: ({ children }) => <h6>{children}</h6>,
};

/**
 * A data: image is shown. An image of a host is not asked for: its address may carry what the model has read, so a link
 * names the host, and opens the image in a tab of its own if the reader wants it.
 */
function Picture({ source, description }: { source: string; description: string }): ReactNode {
  if (isDataImage(source)) return <img src={source} alt={description} className="max-h-96 max-w-full rounded-md" />;
  const host = hostOf(source);
  if (host === null) return <span className="text-faint">Image: {description || "without an address"}</span>;
  return (
    <a
      href={source}
      target="_blank"
      rel={REL}
      className={`${LINK} inline-block rounded-md border border-line px-3 py-2`}
    >
      Image from {host}
      {description && `: ${description}`}
    </a>
  );
}

function formula(source: string, isDisplayed: boolean): ReactNode {
  return (
    <Suspense fallback={<code>{source}</code>}>
      <Formula source={source} isDisplayed={isDisplayed} />
    </Suspense>
  );
}

function languageOf(code: Element): string {
  const classes = code.properties.className;
  const named = Array.isArray(classes) ? classes.find((each) => String(each).startsWith("language-")) : undefined;
  return named === undefined ? "" : String(named).slice("language-".length);
}

function textIn(node: Element | ElementContent): string {
  if (node.type === "text") return node.value;
  return "children" in node ? node.children.map(textIn).join("") : "";
}
