import { act, render } from "@testing-library/react";
import { beforeEach, describe, expect, it, vi } from "vitest";
import { Markdown } from "./markdown";

const parsed = vi.hoisted((): string[] => []);

vi.mock("react-markdown", async (importOriginal) => {
  const original = await importOriginal<typeof import("react-markdown")>();
  return {
    ...original,
    default: (props: { children: string }) => {
      parsed.push(props.children);
      return original.default(props);
    },
  };
});

const BLOCKS = [
  "# Title",
  "A paragraph with *marks*.",
  "- one\n- two",
  "| a |\n| - |\n| 1 |",
  "```py\nx = 1\n```",
  "The end.",
];
const TEXT = BLOCKS.join("\n\n");

/** How long a module may take to load, on a busy machine. */
const PATIENT = { timeout: 30_000 };

beforeEach(() => {
  parsed.length = 0;
});

describe("Markdown", () => {
  it("parses a finished block once, while the blocks behind it grow by a character", () => {
    const { rerender, container } = render(<Markdown text="" isGrowing />);
    for (let end = 1; end <= TEXT.length; end += 1) rerender(<Markdown text={TEXT.slice(0, end)} isGrowing />);
    rerender(<Markdown text={TEXT} isGrowing={false} />);
    // Each block is parsed for each of its own characters at most, once when it ends, and never again.
    expect(parsed.length).toBeLessThanOrEqual(TEXT.length + BLOCKS.length);
    const first = parsed.flatMap((text, index) => (text.startsWith("# Title") ? [index] : []));
    expect(Math.max(...first)).toBeLessThan("# Title\n\nA".length + 2);
    expect(container.querySelector("h2")?.textContent).toBe("Title");
    expect(container.querySelectorAll("td")).toHaveLength(1);
  });

  it("parses nothing anew for the same text", () => {
    const { rerender } = render(<Markdown text={TEXT} isGrowing={false} />);
    expect(parsed).toHaveLength(BLOCKS.length);
    rerender(<Markdown text={`${TEXT}`} isGrowing={false} />);
    expect(parsed).toHaveLength(BLOCKS.length);
  });

  it("shows raw HTML as text, and links and images only as they are allowed", () => {
    const text = '<b onclick="x">bold</b> [bad](javascript:x) [good](https://a.example) ![i](https://b.example/i.png)';
    const { container } = render(<Markdown text={text} isGrowing={false} />);
    expect(container.textContent).toContain('<b onclick="x">bold</b>');
    expect([...container.querySelectorAll("a")].map((link) => [link.getAttribute("href"), link.rel])).toEqual([
      ["https://a.example", "noopener noreferrer nofollow"],
      ["https://b.example/i.png", "noopener noreferrer nofollow"],
    ]);
    expect(container.querySelector("img")).toBeNull();
  });

  it("resolves a link by a definition in another block", () => {
    const { container } = render(
      <Markdown text={"See [it][a].\n\nMore.\n\n[a]: https://a.example"} isGrowing={false} />,
    );
    expect(container.querySelector("a")?.getAttribute("href")).toBe("https://a.example");
  });

  it("draws a formula, and shows one that cannot be read as it is", async () => {
    const { container } = await act(async () =>
      render(<Markdown text={"So $x^2$.\n\n$$\\frac{$$"} isGrowing={false} />),
    );
    await vi.waitFor(() => expect(container.querySelectorAll(".katex")).toHaveLength(1), PATIENT);
    expect(container.querySelector("annotation")?.textContent).toBe("x^2");
    await vi.waitFor(() => expect(container.textContent).toContain("\\frac{"), PATIENT);
  });
});
