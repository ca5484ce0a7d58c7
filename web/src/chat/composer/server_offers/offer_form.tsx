/** The values that a prompt or a template of resources asks for. */
import { type KeyboardEvent, useState } from "react";
import { Button } from "../../../ui/controls";
import { isOfInputMethod } from "../../../ui/keys";

export interface OfferField {
  name: string;
  description: string;
  isRequired: boolean;
}

interface OfferFormProps {
  title: string;
  description: string;
  fields: readonly OfferField[];
  /** What the button says that hands the values in. */
  action: string;
  isAsking: boolean;
  onSubmit: (values: Record<string, string>) => void;
  onBack: () => void;
}

export function OfferForm({ title, description, fields, action, isAsking, onSubmit, onBack }: OfferFormProps) {
  const [values, setValues] = useState<Record<string, string>>({});
  return (
    <form
      aria-label={title}
      className="flex flex-col gap-3"
      onSubmit={(event) => {
        event.preventDefault();
        if (!isAsking) onSubmit(values);
      }}
    >
      <h3 className="break-words font-semibold">{title}</h3>
      {description !== "" && <p className="break-words text-sm text-faint">{description}</p>}
      {fields.map((field, place) => (
        <label key={field.name} className="flex flex-col gap-1 text-sm">
          <span className="break-words">
            {field.name}
            {field.isRequired ? "" : " (optional)"}
          </span>
          <textarea
            rows={1}
            required={field.isRequired}
            // The form takes the place of what was pressed, and would lose the focus.
            // biome-ignore lint/a11y/noAutofocus: as above
            autoFocus={place === 0}
            value={values[field.name] ?? ""}
            onKeyDown={submitByEnter}
            onChange={({ target }) => setValues((before) => ({ ...before, [field.name]: target.value }))}
            className="rounded-md border border-line bg-raised px-2 py-1.5"
          />
          {field.description !== "" && <span className="break-words text-xs text-faint">{field.description}</span>}
        </label>
      ))}
      <div className="flex gap-2">
        <Button type="submit" look="main" disabled={isAsking}>
          {action}
        </Button>
        <Button onClick={onBack}>Back</Button>
      </div>
    </form>
  );
}

/** As in the message: Enter hands in, Shift+Enter begins a new line. */
function submitByEnter(event: KeyboardEvent<HTMLTextAreaElement>) {
  if (event.key !== "Enter" || event.shiftKey || isOfInputMethod(event.nativeEvent)) return;
  event.preventDefault();
  event.currentTarget.form?.requestSubmit();
}
