/** Says what of the message, or of the conversation, the chosen model cannot take, and offers ways out. */
import type { ListedModel } from "../../models/models";
import { Button } from "../../ui/controls";
import { type Attachment, type Modality, modalitiesOf, unsupported } from "./attachment";
import type { Attachments } from "./drafts";

const WORDS: Record<Modality, string> = { image: "images", audio: "sounds" };

interface ModalityNoteProps {
  /** Of the note, which is why the message cannot be sent. */
  id: string;
  model: ListedModel;
  models: readonly ListedModel[];
  attachments: Attachments;
  /** Kinds of input beside text that the message has, or what it follows. */
  needed: ReadonlySet<Modality>;
  onChoose: (model: string) => void;
}

export function ModalityNote({ id, model, models, attachments, needed, onChoose }: ModalityNoteProps) {
  const attached = modalitiesOf(attachments.list.flatMap(({ parts }) => parts));
  const missing = unsupported(model, needed);
  if (missing.length === 0) return null;
  const isAttached = missing.some((kind) => attached.has(kind));
  const others = models.filter((each) => unsupported(each, needed).length === 0);
  const pdfs = attachments.list.filter((each) => isPageForm(each) && missing.includes("image"));
  const removable = attachments.list.filter((each) => unsupported(model, modalitiesOf(each.parts)).length > 0);
  return (
    <div
      id={id}
      role="alert"
      className="flex flex-wrap items-center gap-2 rounded-md border border-warn px-3 py-2 text-sm"
    >
      <span>
        {model.id} takes no {missing.map((kind) => WORDS[kind]).join(" and no ")}.
        {!isAttached && " This conversation has some in earlier messages."}
        {others.length === 0 && " No declared model takes them."} It cannot be sent like this.
      </span>
      {others.slice(0, 3).map((each) => (
        <Button key={each.id} onClick={() => onChoose(each.id)}>
          Use {each.id}
        </Button>
      ))}
      {pdfs.map((pdf) => (
        <Button key={pdf.id} onClick={() => void attachments.convert(pdf, "text")}>
          Send {pdf.name} as text
        </Button>
      ))}
      {removable.length > 0 && (
        <Button
          look="quiet"
          onClick={() => {
            for (const each of removable) attachments.remove(each.id);
          }}
        >
          Remove what it cannot take
        </Button>
      )}
    </div>
  );
}

function isPageForm({ pdf, parts }: Attachment): boolean {
  return pdf !== null && modalitiesOf(parts).has("image");
}
