/** Has the browser save a text, or bytes, as a file. */
export function saveFile(name: string, content: BlobPart, type: string): void {
  const url = URL.createObjectURL(new Blob([content], { type }));
  const link = document.createElement("a");
  link.href = url;
  link.download = name.replace(/[^\p{L}\p{N} ._-]+/gu, "-").slice(0, 120);
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}
