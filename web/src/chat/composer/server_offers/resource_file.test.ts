import { describe, expect, it } from "vitest";
import { readAttachment, UnreadableFileError } from "../read_attachment";
import { fileOf } from "./resource_file";

describe("fileOf", () => {
  it("attaches every text as text, whatever its type and its name say", async () => {
    for (const [uri, mimeType] of [
      ["file:///a.pdf", "application/pdf"],
      ["file:///a.svg", "image/svg+xml"],
      ["file:///a.html", "text/html"],
    ] as const) {
      const { name, parts } = await readAttachment(fileOf({ uri, mimeType, text: "<b>é</b>" }));
      expect(name).toBe(uri);
      expect(parts).toEqual([
        { type: "input_file", filename: uri, file_data: `data:text/plain;base64,${btoa("<b>\xc3\xa9</b>")}` },
      ]);
    }
  });

  it("has the bytes and the type of a blob", async () => {
    const file = fileOf({ uri: "x://1", mimeType: "image/png", blob: "AQID/w==" }, "dot.png");
    expect([file.name, file.type, [...new Uint8Array(await file.arrayBuffer())]]).toEqual([
      "dot.png",
      "image/png",
      [1, 2, 3, 255],
    ]);
  });

  it("refuses a blob that is no base64, and bytes of a type that no message has, with the reason", async () => {
    expect(() => fileOf({ uri: "x://1", blob: "!" })).toThrow("x://1 cannot be read: the server sent no valid base64.");
    const archive = fileOf({ uri: "x://1", mimeType: "application/zip", blob: "UEsDBP8=" });
    await expect(readAttachment(archive)).rejects.toThrow(UnreadableFileError);
    await expect(readAttachment(archive)).rejects.toThrow("x://1 is no text, image, sound or PDF.");
  });

  it("reads a blob of text as text", async () => {
    const { parts } = await readAttachment(fileOf({ uri: "x://1", blob: btoa("coal") }));
    expect(parts).toEqual([
      { type: "input_file", filename: "x://1", file_data: `data:text/plain;base64,${btoa("coal")}` },
    ]);
  });

  it("names a file in one line, and never with nothing", () => {
    expect(fileOf({ uri: "a\n\u202Eb\u0000", text: "" }).name).toBe("a b");
    expect(fileOf({ uri: "\n", text: "" }).name).toBe("resource");
    expect(fileOf({ uri: "x".repeat(300), text: "" }).name).toHaveLength(200);
  });
});
