import { expect, it } from "vitest";
import { textItem } from "./portable";
import { writeShareHtml } from "./share_html";

const OWNED = '<script>window.owned = 1</script><img src=x onerror="window.owned = 1">';

it("escapes everything that was said", () => {
  const path = [
    textItem("u", null, "user", OWNED),
    textItem("a", "u", "assistant", OWNED),
    { ...textItem("t", "a", "assistant", ""), type: "mcp_call", name: OWNED, arguments: OWNED, output: OWNED },
  ];
  const html = writeShareHtml(
    { title: OWNED, createdAt: 0, settings: { model: OWNED }, items: path, activeId: "t" },
    path,
  );
  const page = new DOMParser().parseFromString(html, "text/html");
  expect(page.querySelectorAll("script, img")).toHaveLength(0);
  expect(page.title).toBe(OWNED);
  expect([...page.querySelectorAll("article")].map((each) => each.textContent)).toEqual([
    `User${OWNED}`,
    `Model${OWNED}`,
    `${OWNED}\n${OWNED}`,
  ]);
  expect(html).toContain("of 1970-01-01");
});

it("holds the attached images, and no address elsewhere", () => {
  const item = textItem("u", null, "user", "Look");
  item.content?.push({ type: "input_image", image_url: "data:image/png;base64,AA" });
  item.content?.push({ type: "input_image", image_url: "https://elsewhere.example/a.png" });
  const html = writeShareHtml({ title: "t", createdAt: null, settings: {}, items: [item], activeId: "u" }, [item]);
  const page = new DOMParser().parseFromString(html, "text/html");
  expect([...page.querySelectorAll("img")].map((each) => each.getAttribute("src"))).toEqual([
    "data:image/png;base64,AA",
  ]);
  expect(html).not.toContain("elsewhere.example");
});
