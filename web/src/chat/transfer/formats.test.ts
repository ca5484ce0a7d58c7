import { describe, expect, it } from "vitest";
import type { Item } from "../../api/items";
import { FORMATS, type FormatName, readConversations } from "./formats";
import { orderItems, type Portable, renewIds, textItem } from "./portable";

const IMAGE = "data:image/png;base64,AAAA";
const TREE: Portable = {
  title: "Two ways",
  createdAt: 1_790_000_000,
  settings: { model: "clockwork" },
  items: [
    textItem("s", null, "system", "Be calm."),
    {
      ...textItem("u1", "s", "user", "Hello"),
      content: [
        { type: "input_text", text: "Hello" },
        { type: "input_image", image_url: IMAGE, detail: "auto" },
      ],
    },
    textItem("a1", "u1", "assistant", "Hi.\n\n```js\n1\n```"),
    textItem("a2", "u1", "assistant", "Hello <b>to you</b>"),
    textItem("u2", "a2", "user", "Go on"),
  ],
  activeId: "a1",
};

/** What every format keeps. */
function shape(portable: Portable) {
  const text = (item: Item) => JSON.stringify(item.content?.map((part) => ("text" in part ? part.text : "")).join(""));
  const byId = new Map(portable.items.map((item) => [item.id, item]));
  const path = (item: Item | undefined): string =>
    item === undefined ? "" : `${path(byId.get(item.parent_id ?? ""))}/${item.role}:${text(item)}`;
  return {
    title: portable.title,
    createdAt: portable.createdAt,
    paths: portable.items.map(path).sort(),
    active: path(byId.get(portable.activeId ?? "")),
  };
}

describe.each(Object.keys(FORMATS) as FormatName[])("%s", (name) => {
  it("reads what it writes, with all branches", () => {
    const [read, ...others] = readConversations(JSON.stringify(FORMATS[name].write([TREE])));
    expect(others).toEqual([]);
    expect(read && shape(read)).toEqual(shape(TREE));
  });

  it("is found by its content alone", () => {
    const json = JSON.parse(JSON.stringify(FORMATS[name].write([TREE, TREE])));
    const readers = Object.entries(FORMATS).filter(([, format]) => format.read(json) !== null);
    expect(readers.map(([reader]) => reader)).toEqual([name]);
  });
});

it("keeps images in llama.cpp's and Open WebUI's form", () => {
  for (const name of ["llama_cpp", "open_webui"] as const) {
    const [read] = readConversations(JSON.stringify(FORMATS[name].write([TREE])));
    expect(JSON.stringify(read?.items)).toContain(IMAGE);
  }
});

it("says what is wrong with a file", () => {
  expect(() => readConversations("{")).toThrow(/not JSON/);
  expect(() => readConversations('{"a": 1}')).toThrow(
    /no export of Roundhouse, OpenAI, llama.cpp, Open WebUI: it holds an object with a/,
  );
  expect(() => readConversations("[]")).toThrow(/holds a list/);
  expect(() => readConversations('{"format": "roundhouse-conversations", "version": 9}')).toThrow(/version 9/);
});

it("orders items so that parents come first, and breaks circles", () => {
  const items = [textItem("c", "b", "user", "3"), textItem("b", "a", "user", "2"), textItem("a", null, "user", "1")];
  expect(orderItems(items).map((item) => item.id)).toEqual(["a", "b", "c"]);
  const circle = orderItems([textItem("x", "y", "user", ""), textItem("y", "x", "user", "")]);
  expect(circle.map((item) => item.parent_id)).toEqual([null, "y"]);
  expect(orderItems([textItem("x", "gone", "user", "")])[0]?.parent_id).toBeNull();
});

it("renews ids and keeps the tree", () => {
  const ids = ["n1", "n2", "n3", "n4", "n5"];
  const left = [...ids];
  const renewed = renewIds(TREE, () => left.shift() ?? "");
  expect(shape(renewed)).toEqual(shape(TREE));
  expect(renewed.items.map((item) => item.id)).toEqual(ids);
});

it("reads a thought of Open WebUI apart from the answer", () => {
  const content =
    '<details type="reasoning" done="true" duration="2">\n<summary>Thought</summary>\n> Let me see.\n</details>\nYes.';
  const history = { messages: { a: { id: "a", parentId: null, role: "assistant", content } }, currentId: "a" };
  const [read] = readConversations(JSON.stringify([{ chat: { title: "t", history } }]));
  expect(read?.items.map((item) => [item.type, JSON.stringify(item.content)])).toEqual([
    ["reasoning", '[{"type":"reasoning_text","text":"Let me see."}]'],
    ["message", '[{"type":"output_text","text":"Yes.","annotations":[]}]'],
  ]);
});
