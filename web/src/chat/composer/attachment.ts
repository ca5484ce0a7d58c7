/** What is attached to a message before it is sent, and what of it a model can take. Pure. */
import type { ContentPart, Item } from "../../api/items";
import type { ListedModel } from "../../models/models";

/** Kinds of input beside text, as models list them. */
export type Modality = "image" | "audio";

export interface Attachment {
  id: string;
  name: string;
  /** What the message will have of it. */
  parts: ContentPart[];
  /** Address (data:) of a small picture; null: there is none. */
  preview: string | null;
  /** Pages of a PDF; null for anything else. */
  pages: number | null;
  /** The file, for a PDF, which can be read anew as text or as pages; else null. */
  pdf: File | null;
}

/** Longest side of an image in pixels; larger ones are scaled down before they are sent. */
export const MOST_PIXELS = 1536;

/** Most pages of a PDF that are sent as images. */
export const MOST_PAGES = 20;

/** Returns the message's content: its text, if there is any, and then what is attached. */
export function contentOf(text: string, attachments: readonly Attachment[]): ContentPart[] {
  const words: ContentPart[] = text.trim() === "" ? [] : [{ type: "input_text", text }];
  return [...words, ...attachments.flatMap(({ parts }) => parts)];
}

/** Returns about how many bytes the message's content has in a request. */
export function bytesOf(content: readonly ContentPart[]): number {
  return new TextEncoder().encode(JSON.stringify(content)).length;
}

/** Returns the kinds of input beside text that parts have. */
export function modalitiesOf(parts: readonly ContentPart[]): Set<Modality> {
  const found = new Set<Modality>();
  for (const part of parts) {
    if (part.type === "input_image") found.add("image");
    if (part.type === "input_audio") found.add("audio");
  }
  return found;
}

/** Returns the kinds of input beside text that the items of a branch have. */
export function modalitiesOfItems(items: readonly Item[]): Set<Modality> {
  return modalitiesOf(items.flatMap((item) => item.content ?? []));
}

/** Returns which of the kinds a model cannot take, in a fixed order. */
export function unsupported(model: ListedModel, needed: ReadonlySet<Modality>): Modality[] {
  return (["image", "audio"] as const).filter((kind) => needed.has(kind) && !model.modalities.includes(kind));
}

/** Says a number of bytes: `640 KiB`, `3.2 MiB`. */
export function sayBytes(bytes: number): string {
  const kib = bytes / 1024;
  if (kib < 1024) return `${Math.max(1, Math.round(kib))} KiB`;
  return `${(kib / 1024).toFixed(1)} MiB`;
}
