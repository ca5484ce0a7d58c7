import { expect, test } from "vitest";
import { fitText, inspectionText, progressText, useText } from "./download_words";
import { type DeviceFit, type Download, type InspectedModel, withDownload } from "./downloads";

const RUNNING = {
  id: "a",
  state: "downloading",
  total_bytes: 4 * 1024 * 1024,
  done_bytes: 1024 * 1024,
  bytes_per_s: 1024 * 1024,
  remaining_s: 3,
  waiting: null,
  created_at: 5,
  ended_at: null,
} as Download;

test("progress has speed and time left only while it runs, and then how long it took", () => {
  expect(progressText(RUNNING, 17)).toBe("1.0 MiB of 4.0 MiB, 1.0 MiB per second, 3 s left, 12 s so far");
  expect(progressText({ ...RUNNING, waiting: "the source asks to wait" }, 17)).toBe(
    "1.0 MiB of 4.0 MiB, the source asks to wait, 12 s so far",
  );
  expect(progressText({ ...RUNNING, state: "cancelled", ended_at: 70 }, 999)).toBe("1.0 MiB of 4.0 MiB, in 1 min 5 s");
  expect(progressText({ ...RUNNING, total_bytes: 0 }, 17)).toBe("The source is asked for its files. 12 s so far");
  expect(progressText({ ...RUNNING, state: "failed", total_bytes: 0, ended_at: 6 }, 17)).toBe("");
});

test("a download keeps its place, and a new one is where its time puts it", () => {
  const older = { ...RUNNING, id: "b", created_at: 1 };
  const list = [RUNNING, older];
  expect(withDownload(list, { ...older, done_bytes: 9 }).map((each) => [each.id, each.done_bytes])).toEqual([
    ["a", 1024 * 1024],
    ["b", 9],
  ]);
  expect(withDownload(list, { ...RUNNING, id: "c", created_at: 3 }).map((each) => each.id)).toEqual(["a", "c", "b"]);
});

test("a file says who uses it, or why nobody can", () => {
  expect(useText({ used_by: ["a", "b"], reason: null })).toBe("used by a, b");
  expect(useText({ used_by: [], reason: null })).toBe("used by no model");
  expect(useText({ used_by: [], reason: "it is cut off" })).toBe("used by no model: it is cut off");
});

test("an inspection and fits in words", () => {
  const inspection = { files: [{}], total_bytes: 2048, missing_bytes: 0, free_bytes: 1024 ** 3 };
  expect(inspectionText({ inspection } as InspectedModel)).toBe(
    "1 file, 2.0 KiB; all of it is here; 1.0 GiB are free for downloads",
  );
  const fit: DeviceFit = {
    gpus: ["0"],
    needed_mib: 2048,
    free_mib: 1024,
    total_mib: 8192,
    fits: false,
    fits_alone: true,
    beside: ["qwen"],
    reason: "1 GiB is missing.",
  };
  expect(fitText(fit)).toBe(
    "GPU 0: fits once other models are unloaded; needs 2.0 GiB of 1.0 GiB free. 1 GiB is missing.",
  );
  expect(fitText({ ...fit, fits: true, free_mib: 4096, reason: null })).toBe(
    "GPU 0: fits beside qwen; needs 2.0 GiB of 4.0 GiB free",
  );
  expect(fitText({ ...fit, gpus: [], beside: [], fits: true, free_mib: null, reason: null })).toBe(
    "main memory: fits; needs 2.0 GiB",
  );
});
