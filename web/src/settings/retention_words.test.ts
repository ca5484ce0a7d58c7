import { expect, it } from "vitest";
import { sayRetention } from "./retention_words";

it.each([
  [2_592_000, "30 days"],
  [86_400, "1 day"],
  [129_600, "36 hours"],
  [216_000, "3 days"],
  [1800, "30 minutes"],
  [90, "90 seconds"],
  [1, "1 second"],
  [0.4, "0 seconds"],
])("says how long %d seconds are: %s", (seconds, words) => {
  expect(sayRetention(seconds)).toBe(
    `The gateway keeps conversations for your tenant, for ${words} after their last use.`,
  );
});

it("says that nothing is kept, and nothing of what it does not know", () => {
  expect(sayRetention(0)).toBe("This gateway keeps no conversations: keep them in this browser.");
  expect(sayRetention(undefined)).toBe("The gateway keeps conversations for your tenant.");
});
