/** Makes files of a resource's contents, which are attached as files of the user's are. */
import { UnreadableFileError } from "../read_attachment";
import type { ResourceContents } from "./offers";

/** Characters of a file's name. */
const LONGEST_NAME = 200;

/**
 * Returns the file of a text, or of the bytes of a blob. A text is one whatever type the server tells: an HTML or SVG text
 * is attached as text. `name`: of the file; null: the resource's address. Throws UnreadableFileError: a blob is no base64.
 */
export function fileOf(contents: ResourceContents, name: string | null = null): File {
  const called = nameOf(name ?? contents.uri);
  if ("text" in contents) return new File([contents.text], called, { type: "text/plain" });
  return new File([bytesOf(contents.blob, called)], called, { type: contents.mimeType ?? "" });
}

/** Returns the file of an image or a sound of a message. Throws as `fileOf`. */
export function fileOfMedia(data: string, mediaType: string, name: string): File {
  return new File([bytesOf(data, name)], nameOf(name), { type: mediaType });
}

function nameOf(text: string): string {
  // The model reads it: a name of several lines would look like more than a name.
  const plain = text.replace(/\p{C}+/gu, " ").trim();
  return plain === "" ? "resource" : plain.slice(0, LONGEST_NAME);
}

function bytesOf(base64: string, name: string): Uint8Array<ArrayBuffer> {
  try {
    return Uint8Array.from(atob(base64), (each) => each.charCodeAt(0));
  } catch {
    throw new UnreadableFileError(`${name} cannot be read: the server sent no valid base64.`);
  }
}
