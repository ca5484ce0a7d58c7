import { describe, expect, it } from "vitest";
import { appended, draftOfPrompt } from "./draft_of_prompt";
import type { PromptMessage } from "./offers";

function said(role: "user" | "assistant", text: string): PromptMessage {
  return { role, content: { type: "text", text } };
}

describe("draftOfPrompt", () => {
  it("takes a text as it is", () => {
    const text = "  <b>Is it</b>\n raining?\n";
    expect(draftOfPrompt([said("user", text)])).toEqual({ text, files: [], note: null });
  });

  it("puts texts of the user one after the other, and says so", () => {
    expect(draftOfPrompt([said("user", "One."), said("user", "Two.")])).toEqual({
      text: "One.\n\nTwo.",
      files: [],
      note: "The prompt has 2 texts of the user. The draft has them as one message.",
    });
  });

  it("says whose each text is where the assistant has some", () => {
    const draft = draftOfPrompt([said("user", "Hot?"), said("assistant", "Yes."), said("user", "Cold?")]);
    expect(draft.text).toBe("User: Hot?\n\nAssistant: Yes.\n\nUser: Cold?");
    expect(draft.note).toBe(
      "The prompt has 3 messages; one of them is an answer of the assistant. The draft is one message, and says whose each text is.",
    );
    expect(draftOfPrompt([said("assistant", "Yes.")]).note).toMatch(/^The message of the prompt is an answer of the/);
  });

  it("makes files of resources, images and sounds", async () => {
    const draft = draftOfPrompt([
      said("user", "Look"),
      { role: "user", content: { type: "resource", resource: { uri: "notes://today", text: "Fetch coal." } } },
      { role: "user", content: { type: "image", data: "AQID", mimeType: "image/png" } },
      { role: "assistant", content: { type: "audio", data: "AQ==", mimeType: "audio/wav" } },
    ]);
    expect(draft.text).toBe("User: Look");
    expect(draft.files.map(({ name, type, size }) => [name, type, size])).toEqual([
      ["notes://today", "text/plain", 11],
      ["image 2 of the prompt", "image/png", 3],
      ["audio 3 of the prompt", "audio/wav", 1],
    ]);
  });

  it("names links, which are not followed, and a prompt without messages", () => {
    const link: PromptMessage = { role: "user", content: { type: "resource_link", uri: "file:///a", name: "a" } };
    expect(draftOfPrompt([said("user", "Read"), link]).note).toBe(
      "The prompt names resources that are not attached: file:///a.",
    );
    expect(draftOfPrompt([])).toEqual({ text: "", files: [], note: "The prompt has no messages." });
  });
});

describe("appended", () => {
  it("keeps what is written", () => {
    expect(appended("", "New")).toBe("New");
    expect(appended(" \n", "New")).toBe("New");
    expect(appended("Old\n", "New\n")).toBe("Old\n\nNew\n");
    expect(appended("Old\n", "")).toBe("Old\n");
  });
});
