import { expect, it, vi } from "vitest";
import { newStreamId } from "./runs";

it("gives streams ids that sort by the time at which they were asked for", () => {
  const times = [999_999, 1_000_000, Date.UTC(2026, 10, 26), Date.UTC(2026, 10, 26) + 1, Date.UTC(2060, 0, 1)];
  const ids = times.map((time) => newStreamId("conv_1", time));
  expect([...ids].sort()).toEqual(ids);
  expect(ids.every((id) => id.startsWith("page/conv_1::"))).toBe(true);
});

it("makes ids also where a page over plain HTTP has no randomUUID", () => {
  const { getRandomValues } = crypto;
  vi.stubGlobal("crypto", { getRandomValues: getRandomValues.bind(crypto) });
  try {
    expect(newStreamId("conv_1", 0)).toMatch(/^page\/conv_1::0{9}-[0-9a-f]{32}$/);
    expect(newStreamId("conv_1", 0)).not.toBe(newStreamId("conv_1", 0));
  } finally {
    vi.unstubAllGlobals();
  }
});
