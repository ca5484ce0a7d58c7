import { expect, it } from "vitest";
import { hostOf, isDataImage, safeLink } from "./addresses";

it.each([
  ["https://example.org/a?b#c", "https://example.org/a?b#c"],
  ["http://127.0.0.1:8080/", "http://127.0.0.1:8080/"],
  ["mailto:me@example.org", "mailto:me@example.org"],
  ["javascript:alert(1)", null],
  ["JaVaScRiPt:alert(1)", null],
  ["java\nscript:alert(1)", null],
  ["data:text/html,<script>", null],
  ["vbscript:x", null],
  ["blob:https://example.org/1", null],
  ["file:///etc/passwd", null],
  ["#/settings", null],
  ["/v1/models", null],
  ["//example.org", null],
  ["", null],
  [undefined, null],
])("safeLink of %j", (address, link) => {
  expect(safeLink(address)).toBe(link);
});

it.each([
  ["data:image/png;base64,AAAA", true],
  ["data:image/svg+xml,<svg/>", true],
  ["data:text/html,<script>", false],
  ["https://example.org/a.png", false],
])("isDataImage of %j", (address, is) => {
  expect(isDataImage(address)).toBe(is);
});

it.each([
  ["https://example.org:444/a.png?secret", "example.org:444"],
  ["data:image/png;base64,AAAA", null],
  ["/v1/models", null],
])("hostOf %j", (address, host) => {
  expect(hostOf(address)).toBe(host);
});
