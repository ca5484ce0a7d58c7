/** What a user's message holds: text, images, sounds, files. */
import type { ContentPart } from "../../api/items";
import { isDataImage } from "../markdown/addresses";

export function MessageParts({ parts }: { parts: readonly ContentPart[] }) {
  return (
    <>
      {parts.map((part, index) => (
        // biome-ignore lint/suspicious/noArrayIndexKey: the parts of a message never change their places.
        <MessagePart key={index} part={part} />
      ))}
    </>
  );
}

function MessagePart({ part }: { part: ContentPart }) {
  switch (part.type) {
    case "input_text":
    case "output_text":
      return <p className="whitespace-pre-wrap break-words">{part.text}</p>;
    case "input_image":
      return part.image_url !== undefined && isDataImage(part.image_url) ? (
        <img src={part.image_url} alt="Attached" className="my-1 max-h-64 max-w-full rounded-md" />
      ) : (
        <p className="break-all text-sm text-faint">Image: {part.image_url ?? "not kept"}</p>
      );
    case "input_audio":
      return (
        // biome-ignore lint/a11y/useMediaCaption: there are no captions of what a user has recorded.
        <audio controls src={`data:audio/${audioType(part.input_audio.format)};base64,${part.input_audio.data}`} />
      );
    case "input_file":
      return (
        <p className="break-words text-sm text-faint">File: {part.filename ?? part.file_id ?? "without a name"}</p>
      );
    default:
      return null;
  }
}

/** A format is a plain word; what is not one must not become a part of an address. */
function audioType(format: string): string {
  return format === "mp3" ? "mpeg" : format.replace(/[^a-z0-9]/gi, "");
}
