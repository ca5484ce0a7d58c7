/** Makes attachments of files: images scaled down, sounds as wav or mp3, PDFs as text or pages, texts with their name. */
import { type ContentPart, randomId } from "../../api/items";
import { type Attachment, MOST_PIXELS } from "./attachment";

/** Why a file cannot be attached, in words for the user. */
export class UnreadableFileError extends Error {}

/** Sides of a preview in pixels. */
const PREVIEW_PIXELS = 96;

/** Images of other types are not known to every engine, and are written anew. */
const PLAIN_IMAGES = ["image/png", "image/jpeg"];

/** Largest image that is sent as it is. */
const MOST_IMAGE_BYTES = 4 << 20;

const SOUNDS: Record<string, string> = {
  "audio/wav": "wav",
  "audio/x-wav": "wav",
  "audio/wave": "wav",
  "audio/vnd.wave": "wav",
  "audio/mpeg": "mp3",
  "audio/mp3": "mp3",
};

/** Samples per second of sounds that are written anew: what speech models hear. */
const SOUND_RATE = 16_000;

export type PdfForm = "text" | "pages";

/** Returns the attachment of a file. `form`: how a PDF is sent. Throws UnreadableFileError. */
export async function readAttachment(file: File, form: PdfForm = "text"): Promise<Attachment> {
  const attachment = {
    id: randomId(),
    name: file.name || "Pasted file",
    preview: null,
    pages: null,
    pdf: null,
  };
  if (file.type.startsWith("image/")) return { ...attachment, ...(await readImage(file)) };
  if (file.type.startsWith("audio/")) return { ...attachment, parts: [await readSound(file)] };
  if (file.type === "application/pdf" || (file.type !== "text/plain" && file.name.toLowerCase().endsWith(".pdf"))) {
    return { ...attachment, ...(await readPdf(file, form)), pdf: file };
  }
  return { ...attachment, parts: [textPart(file.name, await readText(file))] };
}

async function readImage(file: File): Promise<Pick<Attachment, "parts" | "preview">> {
  const picture = await createImageBitmap(file).catch(() => {
    throw new UnreadableFileError(`${file.name} is no image that this browser can read.`);
  });
  const isPlain = PLAIN_IMAGES.includes(file.type) && file.size <= MOST_IMAGE_BYTES;
  const isSmall = Math.max(picture.width, picture.height) <= MOST_PIXELS;
  const hasAlpha = file.type !== "image/jpeg" && file.size <= MOST_IMAGE_BYTES;
  const type = hasAlpha ? "image/png" : "image/jpeg";
  const url = isPlain && isSmall ? await dataUrl(file) : drawScaled(picture, MOST_PIXELS, type);
  const preview = drawScaled(picture, PREVIEW_PIXELS, "image/png");
  picture.close();
  return { parts: [{ type: "input_image", image_url: url }], preview };
}

/** Returns the picture, its longest side at most `most` pixels, as a data: address. */
function drawScaled(picture: ImageBitmap, most: number, type: string): string {
  const scale = Math.min(1, most / Math.max(picture.width, picture.height));
  const canvas = document.createElement("canvas");
  canvas.width = Math.max(1, Math.round(picture.width * scale));
  canvas.height = Math.max(1, Math.round(picture.height * scale));
  canvas.getContext("2d")?.drawImage(picture, 0, 0, canvas.width, canvas.height);
  return canvas.toDataURL(type, 0.9);
}

async function readSound(file: File): Promise<ContentPart> {
  const format = SOUNDS[file.type];
  if (format !== undefined) return soundPart(await dataUrl(file), format);
  const context = new OfflineAudioContext(1, 1, SOUND_RATE);
  const sound = await context.decodeAudioData(await file.arrayBuffer()).catch(() => {
    throw new UnreadableFileError(`${file.name} is no sound that this browser can read.`);
  });
  return soundPart(await dataUrl(new Blob([writeWav(mix(sound), SOUND_RATE)])), "wav");
}

function soundPart(url: string, format: string): ContentPart {
  return { type: "input_audio", input_audio: { data: url.slice(url.indexOf(",") + 1), format } };
}

/** Returns the mean of the channels. */
function mix(sound: AudioBuffer): Float32Array {
  const mean = new Float32Array(sound.length);
  for (let channel = 0; channel < sound.numberOfChannels; channel += 1) {
    sound.getChannelData(channel).forEach((sample, index) => {
      mean[index] = (mean[index] ?? 0) + sample / sound.numberOfChannels;
    });
  }
  return mean;
}

/** Returns a WAV file of one channel with 16 bits per sample, of samples from -1 to 1. */
export function writeWav(samples: Float32Array, rate: number): ArrayBuffer {
  const file = new ArrayBuffer(44 + samples.length * 2);
  const view = new DataView(file);
  const write = (offset: number, text: string) =>
    new Uint8Array(file, offset, text.length).set(new TextEncoder().encode(text));
  write(0, "RIFF");
  view.setUint32(4, file.byteLength - 8, true);
  write(8, "WAVEfmt ");
  view.setUint32(16, 16, true);
  view.setUint16(20, 1, true);
  view.setUint16(22, 1, true);
  view.setUint32(24, rate, true);
  view.setUint32(28, rate * 2, true);
  view.setUint16(32, 2, true);
  view.setUint16(34, 16, true);
  write(36, "data");
  view.setUint32(40, samples.length * 2, true);
  samples.forEach((sample, index) => {
    view.setInt16(44 + index * 2, Math.round(Math.min(Math.max(sample, -1), 1) * 32767), true);
  });
  return file;
}

async function readPdf(file: File, form: PdfForm): Promise<Pick<Attachment, "parts" | "pages" | "preview">> {
  // A third of a megabyte, and its worker one more: loaded where a PDF is attached.
  const { readPages, readPdfText } = await import("./pdf");
  try {
    if (form === "pages") {
      const { images, pages } = await readPages(file);
      return {
        parts: images.map((url) => ({ type: "input_image", image_url: url })),
        pages,
        preview: images[0] ?? null,
      };
    }
    const { text, pages } = await readPdfText(file);
    return { parts: [textPart(file.name, text)], pages, preview: null };
  } catch {
    throw new UnreadableFileError(`${file.name} cannot be read. It may be damaged, or need a password.`);
  }
}

/** Returns a file of text as the gateway reads it: it tells the model the name, and then the text. */
export function textPart(name: string, text: string): ContentPart {
  const bytes = new TextEncoder().encode(text);
  let binary = "";
  for (let start = 0; start < bytes.length; start += 8192) {
    binary += String.fromCharCode(...bytes.subarray(start, start + 8192));
  }
  return { type: "input_file", filename: name, file_data: `data:text/plain;base64,${btoa(binary)}` };
}

async function readText(file: File): Promise<string> {
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
    if (!text.includes("\0")) return text;
  } catch {
    // No UTF-8: told below.
  }
  throw new UnreadableFileError(`${file.name} is no text, image, sound or PDF. Attach a file of one of these kinds.`);
}

function dataUrl(blob: Blob): Promise<string> {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(String(reader.result));
    reader.onerror = () => reject(new UnreadableFileError("The file could not be read."));
    reader.readAsDataURL(blob);
  });
}
