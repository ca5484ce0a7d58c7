/** Texts and pages of PDFs, read in the browser by pdf.js. Loaded where a PDF is attached. */
import { GlobalWorkerOptions, getDocument, type PDFDocumentProxy } from "pdfjs-dist";
import workerUrl from "pdfjs-dist/build/pdf.worker.min.mjs?url";
import { MOST_PAGES, MOST_PIXELS } from "./attachment";

GlobalWorkerOptions.workerSrc = workerUrl;

/** Returns the text of all pages, a blank line between them, and their number. Throws if the PDF cannot be read. */
export function readPdfText(file: File): Promise<{ text: string; pages: number }> {
  return withDocument(file, async (pdf) => {
    const texts: string[] = [];
    for (let number = 1; number <= pdf.numPages; number += 1) {
      const { items } = await (await pdf.getPage(number)).getTextContent();
      texts.push(items.map((item) => ("str" in item ? item.str + (item.hasEOL ? "\n" : "") : "")).join(""));
    }
    return { text: texts.join("\n\n"), pages: pdf.numPages };
  });
}

/** Returns the first `MOST_PAGES` pages as JPEG images in data: addresses, and the number of all. Throws as `readPdfText`. */
export function readPages(file: File): Promise<{ images: string[]; pages: number }> {
  return withDocument(file, async (pdf) => {
    const images: string[] = [];
    for (let number = 1; number <= Math.min(pdf.numPages, MOST_PAGES); number += 1) {
      const page = await pdf.getPage(number);
      const { width, height } = page.getViewport({ scale: 1 });
      const viewport = page.getViewport({ scale: MOST_PIXELS / Math.max(width, height) });
      const canvas = document.createElement("canvas");
      canvas.width = Math.round(viewport.width);
      canvas.height = Math.round(viewport.height);
      await page.render({ canvas, viewport }).promise;
      images.push(canvas.toDataURL("image/jpeg", 0.85));
    }
    return { images, pages: pdf.numPages };
  });
}

async function withDocument<T>(file: File, read: (pdf: PDFDocumentProxy) => Promise<T>): Promise<T> {
  // The policy of the page allows neither WebAssembly nor style elements, which fonts would be written into.
  const task = getDocument({ data: await file.arrayBuffer(), useWasm: false, disableFontFace: true });
  try {
    return await read(await task.promise);
  } finally {
    await task.destroy();
  }
}
