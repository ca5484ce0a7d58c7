import "fake-indexeddb/auto";
import { afterEach, beforeEach, expect, it, vi } from "vitest";
import { Drafts } from "./drafts";

const noteFile = (name: string) => new File([`text of ${name}`], name, { type: "text/plain" });

const namesOf = (drafts: Drafts, id: string | null) => drafts.find(id).files.map(({ name }) => name);

/** Drafts of the same tab after a reload. */
function reloaded(): Drafts {
  dispatchEvent(new Event("pagehide"));
  return new Drafts();
}

beforeEach(() => sessionStorage.clear());

afterEach(() => {
  vi.restoreAllMocks();
  vi.useRealTimers();
});

it("keeps text and files of each conversation together, apart from those of others", async () => {
  const drafts = new Drafts();
  await drafts.restore("conv_1");
  drafts.setText("conv_1", "Look at this");
  await drafts.add("conv_1", [noteFile("a.txt"), noteFile("b.txt")]);
  // Its user comes back to the conversation.
  await drafts.restore("conv_1");
  expect(drafts.find(null)).toEqual({ text: "", files: [], reading: 0, problems: [] });
  expect(drafts.find("conv_1").text).toBe("Look at this");
  expect(namesOf(drafts, "conv_1")).toEqual(["a.txt", "b.txt"]);
});

it("gives a file that is read slowly to the conversation in which it was attached", async () => {
  const drafts = new Drafts();
  const reading = drafts.add("conv_1", [noteFile("late.txt")]);
  expect(drafts.find("conv_1").reading).toBe(1);
  expect(drafts.find(null).reading).toBe(0);
  await reading;
  expect([namesOf(drafts, "conv_1"), namesOf(drafts, null), drafts.find("conv_1").reading]).toEqual([
    ["late.txt"],
    [],
    0,
  ]);
});

it("has text and files again after a reload, and neither after they were sent", async () => {
  const before = new Drafts();
  before.setText(null, "Kept");
  await before.add(null, [noteFile("kept.txt")]);
  await before.settled();

  const after = reloaded();
  expect(after.find(null).text).toBe("Kept");
  await after.restore(null);
  expect(namesOf(after, null)).toEqual(["kept.txt"]);
  after.clear(null);
  await after.settled();

  const empty = reloaded();
  await empty.restore(null);
  expect(empty.find(null)).toEqual({ text: "", files: [], reading: 0, problems: [] });
});

it("says why a file cannot be attached, where it was attached", async () => {
  const drafts = new Drafts();
  await drafts.add("conv_1", [new File([new Uint8Array([0, 255, 254, 0, 1])], "noise.bin")]);
  expect(drafts.find("conv_1").problems).toEqual([expect.stringContaining("noise.bin")]);
  expect(drafts.find(null).problems).toEqual([]);
});

it("keeps files that could not be read once", async () => {
  const before = new Drafts();
  await before.add("conv_1", [noteFile("kept.txt")]);
  await before.settled();

  const after = reloaded();
  vi.spyOn(indexedDB, "open").mockImplementationOnce(() => {
    throw new Error("The disk is busy.");
  });
  await after.restore("conv_1");
  await after.settled();
  expect(namesOf(after, "conv_1")).toEqual([]);
  await after.restore("conv_1");
  expect(namesOf(after, "conv_1")).toEqual(["kept.txt"]);
});

it("leaves the files of a tab alone that it is a copy of", async () => {
  const first = new Drafts();
  await first.add("conv_1", [noteFile("a.txt")]);
  await first.settled();
  const ofFirst = Object.entries(sessionStorage);

  // The tab is duplicated: its storage is, too.
  const second = new Drafts();
  await second.restore("conv_1");
  expect(namesOf(second, "conv_1")).toEqual(["a.txt"]);
  second.clear("conv_1");
  await second.settled();

  sessionStorage.clear();
  for (const [key, value] of ofFirst) sessionStorage.setItem(key, value);
  const firstAgain = reloaded();
  await firstAgain.restore("conv_1");
  expect(namesOf(firstAgain, "conv_1")).toEqual(["a.txt"]);
});

it("forgets all text and files when its user signs out, and old files by itself", async () => {
  const drafts = new Drafts();
  drafts.setText(null, "Secret");
  await drafts.add("conv_1", [noteFile("secret.txt")]);
  await drafts.settled();
  const kept = Object.entries(sessionStorage);
  await drafts.deleteOld(Date.now());
  const other = reloaded();
  await other.restore("conv_1");
  expect(namesOf(other, "conv_1")).toEqual(["secret.txt"]);

  await drafts.deleteOld(Date.now() + 8 * 86_400_000);
  const later = reloaded();
  await later.restore("conv_1");
  expect(namesOf(later, "conv_1")).toEqual([]);

  for (const [key, value] of kept) sessionStorage.setItem(key, value);
  await drafts.add("conv_1", [noteFile("secret.txt")]);
  await drafts.clearAll();
  expect([drafts.find(null).text, namesOf(drafts, "conv_1")]).toEqual(["", []]);
  expect(Object.keys(sessionStorage).filter((key) => key.includes("draft"))).toEqual([]);
  for (const [key, value] of kept) sessionStorage.setItem(key, value);
  const next = reloaded();
  await next.restore("conv_1");
  expect(namesOf(next, "conv_1")).toEqual([]);
});
