/** Finds a model on the hub, with its quantisations, sizes and what fits; a click downloads it, one more serves it. */
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { type FormEvent, useState } from "react";
import { useClient } from "../../api/access";
import { describeError } from "../../api/client";
import { routeHash } from "../../router";
import { Button, ErrorNote, Meter, SameByCommand, showCode } from "../../ui/controls";
import { bytesText, percentText } from "../../ui/figures";
import { Field, INPUT, Section } from "../../ui/view";
import { shellWord } from "../load_fields";
import { repositoryText } from "./download_words";
import {
  type Download,
  downloadKeys,
  downloadsQuery,
  isRunning,
  type OfferedModel,
  type OfferedRepository,
  searchModels,
  serveModelFile,
  startDownload,
  withDownload,
} from "./downloads";

export function GetModelSection() {
  const client = useClient();
  const [words, setWords] = useState("");
  const searching = useMutation({ mutationFn: (asked: string) => searchModels(client, asked) });
  const asked = words.trim();

  function submit(event: FormEvent) {
    event.preventDefault();
    if (asked !== "" && !searching.isPending) searching.mutate(asked);
  }

  return (
    <Section title="Get a model">
      <form onSubmit={submit} aria-label="Search the hub" className="flex flex-wrap items-end gap-2">
        <div className="min-w-60 flex-1">
          <Field label="Words in the name of a model on the Hugging Face hub">
            <input
              required
              type="search"
              maxLength={200}
              className={INPUT}
              value={words}
              placeholder="qwen 8b"
              autoComplete="off"
              spellCheck={false}
              onChange={(event) => setWords(event.target.value)}
            />
          </Field>
        </div>
        <Button type="submit" aria-disabled={searching.isPending}>
          {searching.isPending ? "Searching…" : "Search"}
        </Button>
      </form>
      {searching.error && <ErrorNote {...describeError(searching.error)} />}
      {searching.data !== undefined &&
        (searching.data.length === 0 ? (
          <p role="status" className="text-sm">
            The hub has no model in GGUF or safetensors with “{searching.variables}” in its name.
          </p>
        ) : (
          <ul aria-label="Found models" className="flex flex-col gap-2">
            {searching.data.map((found, place) => (
              <FoundRepository key={found.repository} found={found} isOpen={place === 0} />
            ))}
          </ul>
        ))}
      <SameByCommand command={`roundhouse search ${asked === "" ? "WORDS" : shellWord(asked)}`} />
    </Section>
  );
}

function FoundRepository({ found, isOpen }: { found: OfferedRepository; isOpen: boolean }) {
  return (
    <li aria-label={found.repository} className="rounded-lg border border-line bg-panel p-3 text-sm">
      <details open={isOpen}>
        <summary className="cursor-pointer">
          <span className="font-mono break-all">{found.repository}</span>
          <span className="text-faint"> {repositoryText(found)}</span>
        </summary>
        {found.reason !== null && <p className="mt-1">{showCode(found.reason)}</p>}
        {found.is_gated && (
          <p className="mt-1">
            {showCode("It is gated: accept its terms on the hub, and set `ROUNDHOUSE_HUB_TOKEN_FILE`.")}
          </p>
        )}
        <ul aria-label={`Models of ${found.repository}`} className="mt-1">
          {found.choices.map((choice) => (
            <Choice key={choice.reference} choice={choice} />
          ))}
        </ul>
        {found.left_out > 0 && <p className="mt-1 text-faint">{found.left_out} more are on its page.</p>}
      </details>
    </li>
  );
}

function Choice({ choice }: { choice: OfferedModel }) {
  const client = useClient();
  const queries = useQueryClient();
  // The list is kept up by the section of downloads.
  const downloads = useQuery(downloadsQuery(client)).data;
  const download = downloads?.find((each) => each.reference === choice.reference);
  const starting = useMutation({
    mutationFn: () => startDownload(client, choice.reference),
    onSuccess: (started) =>
      queries.setQueryData<Download[]>(downloadKeys.list, (known) => withDownload(known ?? [], started)),
  });
  const serving = useMutation({
    mutationFn: () => serveModelFile(client, choice.main),
    onSettled: () => queries.invalidateQueries({ queryKey: ["admin"] }),
  });
  const name = choice.quantisation ?? choice.format;
  const isHere = choice.is_present || download?.state === "finished";
  const share = download === undefined || download.total_bytes === 0 ? 0 : download.done_bytes / download.total_bytes;
  const users = serving.data === undefined ? choice.used_by : [serving.data.name];
  const error = starting.error ?? serving.error;
  return (
    <li aria-label={choice.reference} className="border-t border-line py-1">
      <div className="flex flex-wrap items-center justify-between gap-2">
        <span className="min-w-0">
          <span className="font-mono break-all">{name}</span> {bytesText(choice.size)}
          {choice.projector !== null && ", with its projector"}
          <span className="block text-faint">{showCode(choice.forecast.summary)}</span>
        </span>
        {users.length > 0 ? (
          <span>
            used by{" "}
            {users.map((user) => (
              <a key={user} href={routeHash("models", user)} className="mr-1 underline underline-offset-2">
                {user}
              </a>
            ))}
          </span>
        ) : isHere ? (
          <Button
            aria-label={`Serve ${choice.reference}`}
            aria-disabled={serving.isPending}
            onClick={() => !serving.isPending && serving.mutate()}
          >
            Serve it
          </Button>
        ) : (
          (download === undefined || !isRunning(download)) && (
            <Button
              aria-label={`Download ${choice.reference}`}
              aria-disabled={starting.isPending}
              onClick={() => !starting.isPending && starting.mutate()}
            >
              Download
            </Button>
          )
        )}
      </div>
      {download !== undefined && isRunning(download) && (
        <Meter label={`Downloaded of ${choice.reference}`} share={share} text={percentText(share)} />
      )}
      {download?.error && !starting.isPending && <ErrorNote message={download.error.message} />}
      {error && <ErrorNote {...describeError(error)} />}
    </li>
  );
}
