import { describe, expect, it } from "vitest";
import { type Blocks, linkDefinitions, NO_BLOCKS, splitBlocks } from "./blocks";

const TEXT = `# Title

A paragraph
over two lines.

- one
  - two

  of one
- three

| a | b |
| - | - |
| 1 | 2 |

\`\`\`py
x = "$$"

y = 2
\`\`\`

$$
a = b

c = d
$$

After the formula, with \`$$\` in code.

> quoted

1. first
2. second

End.`;

describe("splitBlocks", () => {
  it("keeps lists, tables, code and formulas whole", () => {
    const { blocks } = splitBlocks(TEXT);
    expect(blocks.map((block) => block.trim().split("\n", 1)[0])).toEqual([
      "# Title",
      "A paragraph",
      "- one",
      "| a | b |",
      "```py",
      "$$",
      "After the formula, with `$$` in code.",
      "> quoted",
      "1. first",
      "End.",
    ]);
    expect(blocks[5]).toContain("c = d\n$$");
  });

  it("gives the same blocks for a text that grows by a character as for the whole", () => {
    let grown: Blocks = NO_BLOCKS;
    for (let end = 1; end <= TEXT.length; end += 1) {
      grown = splitBlocks(TEXT.slice(0, end), grown);
      expect(grown.blocks).toEqual(splitBlocks(TEXT.slice(0, end)).blocks);
    }
  });

  it("keeps the text of finished blocks while the last one grows", () => {
    const before = splitBlocks("One.\n\nTwo.\n\nThr");
    const after = splitBlocks("One.\n\nTwo.\n\nThree.", before);
    expect(after.blocks).toEqual(["One.", "Two.", "Three."]);
    expect(after.lastStart).toBe("One.\n\nTwo.\n\n".length);
  });

  it("reads each kind of line end, and tabs", () => {
    expect(splitBlocks("One\r\ntwo.\r\n\r\n\tcode\r").blocks).toEqual(["One\ntwo.", "\tcode\n"]);
  });

  it("makes one block of a text with footnotes", () => {
    expect(splitBlocks("See[^1].\n\nMore.\n\n[^1]: Here.").blocks).toHaveLength(1);
  });
});

describe("linkDefinitions", () => {
  it("finds definitions of links and no footnotes", () => {
    expect(linkDefinitions(["See [a].", "[a]: https://a.example", "[^1]: no"])).toBe("[a]: https://a.example");
  });
});
