import { render, screen } from "@testing-library/react";
import { expect, it, vi } from "vitest";
import type { Attachment } from "./attachment";
import { AttachmentList } from "./attachment_list";
import type { Attachments } from "./drafts";

const SOUND: Attachment = {
  id: "1",
  name: "rain.wav",
  parts: [{ type: "input_audio", input_audio: { data: "A".repeat(4096), format: "wav" } }],
  preview: null,
  pages: null,
  pdf: null,
};

function attach(list: readonly Attachment[]): Attachments {
  const nothing = vi.fn();
  return { list, reading: 0, problems: [], add: nothing, remove: nothing, convert: nothing };
}

it("counts the bytes of an attachment once, and not whenever it is rendered", () => {
  const { rerender } = render(<AttachmentList attachments={attach([SOUND])} />);
  screen.getByText("4 KiB");
  const counted = vi.spyOn(JSON, "stringify");
  rerender(<AttachmentList attachments={attach([SOUND])} />);
  expect(counted).not.toHaveBeenCalled();
  rerender(<AttachmentList attachments={attach([{ ...SOUND, parts: [...SOUND.parts, ...SOUND.parts] }])} />);
  screen.getByText("8 KiB");
  expect(counted).toHaveBeenCalled();
});
