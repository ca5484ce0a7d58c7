/** Adds documents, by drop or by the browser's file picker. */
import { useQueryClient } from "@tanstack/react-query";
import { type DragEvent, useId, useState } from "react";
import { useClient } from "../api/access";
import { describeError } from "../api/client";
import { ErrorNote, SameByCommand } from "../ui/controls";
import { FILE_INPUT, Field, INPUT, Section } from "../ui/view";
import { parseAttributes } from "./attributes";
import { addDocument, documentKeys } from "./documents";

interface Refused {
  name: string;
  message: string;
  nextSteps: string[];
}

export function UploadSection({ command }: { command: string }) {
  const { send, sending, sentCount, refused } = useUpload();
  const [attributes, setAttributes] = useState("");
  const [isOver, setOver] = useState(false);
  const pickerId = useId();

  function drop(event: DragEvent) {
    event.preventDefault();
    setOver(false);
    void send([...event.dataTransfer.files], attributes);
  }

  return (
    <Section title="Add documents">
      {/* biome-ignore lint/a11y/noStaticElementInteractions: dropping is one more way; the picker inside is the control */}
      <div
        onDragOver={(event) => {
          event.preventDefault();
          setOver(true);
        }}
        onDragLeave={() => setOver(false)}
        onDrop={drop}
        className={`flex flex-col gap-2 rounded-lg border border-dashed p-4 text-sm ${isOver ? "border-accent bg-panel" : "border-line"}`}
      >
        <label htmlFor={pickerId}>Drop files here, or choose them</label>
        <input
          id={pickerId}
          type="file"
          multiple
          className={FILE_INPUT}
          onChange={(event) => {
            void send([...(event.target.files ?? [])], attributes);
            event.target.value = "";
          }}
        />
        <Field label="Attributes of these documents" note="key=value, separated by commas; searches can filter by them">
          <input className={INPUT} value={attributes} onChange={(event) => setAttributes(event.target.value)} />
        </Field>
      </div>
      <p role="status" className="text-sm text-faint">
        {sending !== null ? `Sending ${sending}…` : sentCount > 0 ? `Sent: ${sentCount}. Indexing follows.` : ""}
      </p>
      {refused.map((each) => (
        <ErrorNote key={each.name} message={`${each.name}: ${each.message}`} nextSteps={each.nextSteps} />
      ))}
      <SameByCommand command={command} />
    </Section>
  );
}

/** Sends files one after the other; what the gateway refuses is kept with its reason, and the next one is sent. */
function useUpload() {
  const client = useClient();
  const queries = useQueryClient();
  const [sending, setSending] = useState<string | null>(null);
  const [sentCount, setSentCount] = useState(0);
  const [refused, setRefused] = useState<Refused[]>([]);

  async function send(files: readonly File[], written: string) {
    setRefused([]);
    setSentCount(0);
    for (const file of files) {
      setSending(file.name);
      try {
        await addDocument(client, file, parseAttributes(written));
        setSentCount((count) => count + 1);
      } catch (error) {
        setRefused((others) => [...others, { name: file.name, ...describeError(error) }]);
      }
      await queries.invalidateQueries({ queryKey: documentKeys.all });
    }
    setSending(null);
  }

  return { send, sending, sentCount, refused };
}
