/** Looks at a model before it is downloaded, downloads it, and shows how far downloads are. */
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { type FormEvent, useState } from "react";
import { useClient } from "../../api/access";
import { describeError } from "../../api/client";
import { readSteps } from "../../api/errors";
import { Button, ErrorNote, Meter, SameByCommand, showCode } from "../../ui/controls";
import { percentText } from "../../ui/figures";
import { CARD, Field, INPUT, Section } from "../../ui/view";
import { shellWord } from "../load_fields";
import { DeclareForm } from "./declare_form";
import { fitText, inspectionText, progressText } from "./download_words";
import {
  cancelDownload,
  type Download,
  downloadKeys,
  type InspectedModel,
  inspectReference,
  isRunning,
  startDownload,
  withDownload,
} from "./downloads";
import { useDownloads } from "./use_downloads";

export function DownloadsSection() {
  const { downloads, error } = useDownloads();
  return (
    <Section title="Downloads">
      <InspectForm />
      {error && <ErrorNote {...describeError(error)} />}
      <ul aria-label="Downloads" className="flex flex-col gap-2">
        {downloads?.map((download) => (
          <DownloadRow key={download.id} download={download} />
        ))}
      </ul>
    </Section>
  );
}

function InspectForm() {
  const client = useClient();
  const queries = useQueryClient();
  const [reference, setReference] = useState("");
  const inspecting = useMutation({ mutationFn: (asked: string) => inspectReference(client, asked) });
  const starting = useMutation({
    mutationFn: (asked: string) => startDownload(client, asked),
    onSuccess: (download) =>
      queries.setQueryData<Download[]>(downloadKeys.list, (known) => withDownload(known ?? [], download)),
  });

  function submit(event: FormEvent) {
    event.preventDefault();
    starting.reset();
    if (!inspecting.isPending) inspecting.mutate(reference.trim());
  }

  const error = inspecting.error ?? starting.error;
  return (
    <>
      <form onSubmit={submit} aria-label="Look at a model" className="flex flex-wrap items-end gap-2">
        <div className="min-w-60 flex-1">
          <Field label="Reference of a model">
            <input
              required
              className={`${INPUT} font-mono`}
              value={reference}
              autoComplete="off"
              spellCheck={false}
              onChange={(event) => setReference(event.target.value)}
            />
          </Field>
        </div>
        <Button type="submit" aria-disabled={inspecting.isPending}>
          {inspecting.isPending ? "Looking…" : "Look"}
        </Button>
      </form>
      <p className="text-xs text-faint">
        USER/REPO:QUANT of Hugging Face, ollama:NAME, oci:HOST/NAME, https://HOST/PATH#sha256=HEX
      </p>
      {error && <ErrorNote {...describeError(error)} />}
      {inspecting.data !== undefined && inspecting.variables !== undefined && (
        <Found
          found={inspecting.data}
          isStarting={starting.isPending}
          onStart={() => starting.mutate(inspecting.variables)}
        />
      )}
      <SameByCommand
        command={`roundhouse pull ${reference.trim() === "" ? "REFERENCE" : shellWord(reference.trim())}`}
      />
    </>
  );
}

function Found({ found, isStarting, onStart }: { found: InspectedModel; isStarting: boolean; onStart: () => void }) {
  return (
    <section aria-label="What was found" className={`${CARD} text-sm`}>
      <p className="font-mono break-all">{found.inspection.pinned}</p>
      <p>{inspectionText(found)}</p>
      <p>Memory: {showCode(found.forecast.reason ?? found.forecast.summary)}</p>
      <ul className="list-disc pl-5 text-faint">
        {found.forecast.devices.map((device) => (
          <li key={device.gpus.join()}>{showCode(fitText(device))}</li>
        ))}
      </ul>
      <Button
        look="main"
        icon="download"
        className="mt-2"
        aria-disabled={isStarting}
        onClick={() => !isStarting && onStart()}
      >
        Download
      </Button>
    </section>
  );
}

function DownloadRow({ download }: { download: Download }) {
  const client = useClient();
  const queries = useQueryClient();
  const keep = (changed: Download) =>
    queries.setQueryData<Download[]>(downloadKeys.list, (known) => withDownload(known ?? [], changed));
  const cancelling = useMutation({ mutationFn: () => cancelDownload(client, download.id), onSuccess: keep });
  const again = useMutation({ mutationFn: () => startDownload(client, download.reference), onSuccess: keep });
  const error = cancelling.error ?? again.error;
  const running = isRunning(download);
  const share = download.total_bytes === 0 ? 0 : download.done_bytes / download.total_bytes;
  return (
    <li aria-label={download.reference} className={`${CARD} text-sm`}>
      <div className="flex flex-wrap items-center justify-between gap-2">
        <p className="min-w-0 font-mono break-all">{download.reference}</p>
        <span>{download.state}</span>
      </div>
      {running && <Meter label="Downloaded" share={share} text={percentText(share)} />}
      <p className="text-faint">{showCode(progressText(download, Date.now() / 1000))}</p>
      {download.error && <ErrorNote message={download.error.message} nextSteps={readSteps(download.error)} />}
      {running && (
        <Button icon="close" onClick={() => cancelling.mutate()}>
          Cancel
        </Button>
      )}
      {(download.state === "failed" || download.state === "cancelled") && (
        <Button icon="download" onClick={() => again.mutate()}>
          Download again
        </Button>
      )}
      {download.state === "finished" && <DeclareForm reference={download.pinned ?? download.reference} />}
      {error && <ErrorNote {...describeError(error)} />}
    </li>
  );
}
