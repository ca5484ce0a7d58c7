/** Activity: what happens now, and who or what changed something before. */
import { useDeferredValue, useState } from "react";
import { describeError } from "../api/client";
import { shellWord } from "../models/load_fields";
import { routeHash } from "../router";
import { Button, ErrorNote, SameByCommand } from "../ui/controls";
import { timeText } from "../ui/figures";
import { Field, INPUT, ViewFrame } from "../ui/view";
import { detailsText, type Entry, KINDS, type Kind } from "./journal";
import { useJournal } from "./use_journal";

export default function ActivityView() {
  const [model, setModel] = useState("");
  const [kind, setKind] = useState<Kind | "">("");
  const [isFollowing, setFollowing] = useState(true);
  const journal = useJournal({ model: useDeferredValue(model.trim()), kind }, isFollowing);
  const options = `${kind === "" ? "" : ` --kind ${kind}`} --follow`;
  return (
    <ViewFrame title="Activity">
      <div className="flex flex-wrap items-end gap-3">
        <Field label="Model">
          <input type="search" className={INPUT} value={model} onChange={(event) => setModel(event.target.value)} />
        </Field>
        <Field label="Kind">
          <select className={INPUT} value={kind} onChange={(event) => setKind(event.target.value as Kind | "")}>
            <option value="">any</option>
            {KINDS.map((each) => (
              <option key={each}>{each}</option>
            ))}
          </select>
        </Field>
        <Button aria-pressed={!isFollowing} onClick={() => setFollowing(!isFollowing)}>
          {isFollowing ? "Pause" : "Follow again"}
        </Button>
      </div>
      {journal.error && <ErrorNote {...describeError(journal.error)} />}
      {journal.isLoading && <p className="text-faint">Loading…</p>}
      {!journal.isLoading && !journal.error && journal.entries.length === 0 && <p>Nothing has happened yet.</p>}
      {/* A log is announced by assistive technology as it grows, politely. */}
      <div role="log" aria-label="Events">
        <ol className="flex flex-col">
          {journal.entries.map((entry) => (
            <EntryRow key={entry.id} entry={entry} />
          ))}
        </ol>
      </div>
      {journal.hasOlder && (
        <Button className="self-start" onClick={journal.readOlder}>
          Show older
        </Button>
      )}
      <SameByCommand
        command={`roundhouse events${model.trim() === "" ? "" : ` --model ${shellWord(model.trim())}`}${options}`}
      />
    </ViewFrame>
  );
}

function EntryRow({ entry }: { entry: Entry }) {
  const details = detailsText(entry);
  return (
    <li className="border-b border-line py-2 text-sm">
      <p className="break-words">
        <span className={entry.kind === "failure" || entry.kind === "problem" ? "text-bad" : "text-faint"}>
          {entry.kind}
        </span>{" "}
        {entry.model !== null && (
          <a href={routeHash("models", entry.model)} className="underline underline-offset-2">
            {entry.model}
          </a>
        )}{" "}
        {entry.message}
      </p>
      <p className="text-xs text-faint">
        <time dateTime={new Date(entry.at * 1000).toISOString()}>{timeText(entry.at)}</time>, by {entry.actor}
      </p>
      {details !== "" && (
        <details className="text-xs">
          <summary className="cursor-pointer text-faint">Details</summary>
          <pre className="font-mono whitespace-pre-wrap break-all">{details}</pre>
        </details>
      )}
    </li>
  );
}
