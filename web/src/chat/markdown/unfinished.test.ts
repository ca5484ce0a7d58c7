import { describe, expect, it } from "vitest";
import { completeBlock } from "./unfinished";

describe("completeBlock", () => {
  it.each([
    ["Plain text", "Plain text"],
    ["A **bold", "A **bold**"],
    ["A **bold** and *it", "A **bold** and *it*"],
    ["A **", "A "],
    ["2 * 3 = 6", "2 * 3 = 6"],
    ["* item **x", "* item **x**"],
    ["~~gone", "~~gone~~"],
    ["Run `make", "Run `make`"],
    ["`a*b` and *c", "`a*b` and *c*"],
    ["See [the docs", "See the docs"],
    ["See [the docs](https://ex", "See the docs"],
    ["See [the docs](https://example.org)", "See [the docs](https://example.org)"],
    ["An ![image](data:image/png;base64,AAAA", "An "],
    ["Text\n``", "Text"],
    ["Text\n-", "Text"],
    ["Text\n==", "Text"],
    ["Then $$a = b", "Then "],
    ["$$\na = b", ""],
    ["$$\na = b\n$$", "$$\na = b\n$$"],
    ["```py\nx = **1", "```py\nx = **1"],
    ["| a | b", ""],
    ["| a | b |\n", "| a | b |\n| --- | --- |"],
    ["| a | b |\n| -", "| a | b |\n| --- | --- |"],
    ["| a | b |\n|---|---|\n| **1", "| a | b |\n|---|---|\n| **1**"],
  ])("shows %j as %j", (block, shown) => {
    expect(completeBlock(block)).toBe(shown);
  });
});
