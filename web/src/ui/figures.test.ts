import { expect, test } from "vitest";
import { bytesText, countText, durationText, mibText, percentText } from "./figures";

test("sizes are in the largest unit that leaves at least 1", () => {
  expect([0, 1023, 1024, 1024 * 1024 - 1, 3.5 * 1024 ** 3, 120 * 1024 ** 2].map(bytesText)).toEqual([
    "0 bytes",
    "1023 bytes",
    "1.0 KiB",
    "1024 KiB",
    "3.5 GiB",
    "120 MiB",
  ]);
  expect([mibText(96), mibText(null)]).toEqual(["96.0 MiB", "not known"]);
});

test("times have two units at most", () => {
  expect([0.4, 59.6, 125, 3600, 90_061].map(durationText)).toEqual([
    "0 s",
    "1 min 0 s",
    "2 min 5 s",
    "1 h 0 min",
    "1 d 1 h",
  ]);
});

test("shares and counts", () => {
  expect([percentText(0.426), countText(1, "file"), countText(0, "reply", "replies")]).toEqual([
    "43 %",
    "1 file",
    "0 replies",
  ]);
});
