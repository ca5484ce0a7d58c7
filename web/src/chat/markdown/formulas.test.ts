import { describe, expect, it } from "vitest";
import { hasFormula, markFormulas } from "./formulas";

describe("hasFormula", () => {
  it.each([
    ["Let $x$ be", true],
    ["$$x$$", true],
    ["\\(x\\)", true],
    ["\\[x\\]", true],
    ["It costs $5 and $6.", false],
    ["no formula", false],
    ["$HOME and $PATH", false],
  ])("says of %j: %s", (text, has) => {
    expect(hasFormula(text)).toBe(has);
  });
});

describe("markFormulas", () => {
  it.each([
    ["Let $x + y$ be", "Let $x + y$ be"],
    ["It costs $5 and $6.", "It costs \\$5 and \\$6."],
    ["Already \\$5", "Already \\$5"],
    ["So \\(x\\).", "So $x$."],
    ["\\[\nx\n\\]", "\n$$\nx\n$$\n"],
    ["Then:\n$$ x + y $$\nor $$z$$.", "Then:\n$$\nx + y\n$$\nor $$z$$."],
    ["- so\n  $$x$$", "- so\n  $$\n  x\n  $$"],
    ["Code `$5` and $6", "Code `$5` and \\$6"],
    ["$$a$$ and $1", "$$a$$ and \\$1"],
    ["```sh\necho $HOME\n```", "```sh\necho $HOME\n```"],
  ])("writes %j as %j", (text, marked) => {
    expect(markFormulas(text)).toBe(marked);
  });
});
