/** What is attached to the message: a preview of each, how a PDF is sent, and the button that removes it. */
import { useMemo } from "react";
import { Button, IconButton } from "../../ui/controls";
import { Icon } from "../../ui/icons";
import { type Attachment, bytesOf, modalitiesOf, sayBytes } from "./attachment";
import type { Attachments } from "./drafts";

export function AttachmentList({ attachments }: { attachments: Attachments }) {
  const { list, reading, problems } = attachments;
  return (
    <>
      {list.length > 0 && (
        <ul aria-label="Attachments" className="flex flex-wrap gap-2">
          {list.map((attachment) => (
            <AttachmentChip key={attachment.id} attachment={attachment} attachments={attachments} />
          ))}
        </ul>
      )}
      {reading > 0 && (
        <p role="status" className="text-sm text-faint">
          Reading a file…
        </p>
      )}
      {problems.map((problem) => (
        <p key={problem} role="alert" className="text-sm text-bad">
          {problem}
        </p>
      ))}
    </>
  );
}

function AttachmentChip({ attachment, attachments }: { attachment: Attachment; attachments: Attachments }) {
  const { name, preview, parts, pages, pdf } = attachment;
  // It is rendered for each key of the message.
  const bytes = useMemo(() => bytesOf(parts), [parts]);
  const arePages = pdf !== null && modalitiesOf(parts).has("image");
  return (
    <li className="flex max-w-full items-center gap-2 rounded-md border border-line bg-raised p-1 text-sm">
      {preview !== null && <img src={preview} alt={`Preview of ${name}`} className="size-10 rounded object-contain" />}
      <span className="min-w-0">
        <span className="block max-w-48 truncate">{name}</span>
        <span className="block text-xs text-faint">
          {pages !== null && `${arePages ? `${parts.length} of ${pages}` : `Text of ${pages}`} pages, `}
          {sayBytes(bytes)}
        </span>
      </span>
      {pdf !== null && (
        <Button
          look="quiet"
          aria-label={arePages ? `Send ${name} as text` : `Send ${name} as pages`}
          onClick={() => void attachments.convert(attachment, arePages ? "text" : "pages")}
        >
          {arePages ? "As text" : "As pages"}
        </Button>
      )}
      <IconButton label={`Remove ${name}`} onClick={() => attachments.remove(attachment.id)}>
        <Icon name="close" />
      </IconButton>
    </li>
  );
}
