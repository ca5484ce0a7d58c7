import { expect, test } from "vitest";
import { sparklinePath, sparklineText } from "./sparkline";

const plain = (value: number) => String(value);

test("the newest value is at the right, a gap is no line, and a lone value is a point", () => {
  expect(sparklinePath([])).toBe("");
  expect(sparklinePath([0, 10, null, 5])).toBe("M56.5 22.0h0L57.5 2.0M59.5 12.0h0");
  expect(sparklinePath([0, 0])).toBe("M58.5 22.0h0L59.5 22.0");
});

test("the curve is said in figures", () => {
  expect(sparklineText("tokens per second", [60, 41], plain)).toBe("tokens per second, last hour: now 41, most 60");
  expect(sparklineText("waiting", [3, null], plain)).toBe("waiting, last hour: now not known, most 3");
  expect(sparklineText("waiting", [], plain)).toBe("waiting, last hour: not known");
});
