/** The answer that is being made: what it waits for, its text as it comes, and how fast. */
import { useCallback, useEffect, useState } from "react";
import { showCode } from "../../ui/controls";
import { durationText } from "../../ui/figures";
import type { Progress } from "../answer";
import { type AnswerStream, isRunning, type Retry, type StreamSnapshot } from "../answer_stream";
import type { ItemTimes } from "../figures";
import type { ItemTree } from "../item_tree";
import { AnswerItemsContext } from "../markdown/citations";
import { useSnapshot } from "../runs";
import { sayPace } from "../token_pace";
import { ItemView } from "./item_view";

/** Shows the items of the answer that are not stored yet: those in `tree` are shown as the conversation's. */
export function RunningAnswer({ stream, tree }: { stream: AnswerStream; tree: ItemTree }) {
  const snapshot = useSnapshot(stream);
  const currentItems = useCallback(() => stream.snapshot.answer.items, [stream]);
  if (snapshot === null) return null;
  const { answer, state, itemTimes } = snapshot;
  const isLive = isRunning(snapshot);
  const items = answer.items.filter((item) => !tree.items.has(item.id));
  // What is stored is shown as the conversation's: an answer stands there once.
  if (items.length === 0 && (!isLive || answer.items.length > 0)) return null;
  return (
    <article aria-label="Answer" aria-busy={isLive} className="flex flex-col gap-2">
      <AnswerItemsContext value={currentItems}>
        {items.map((item, index) => (
          <ItemView
            key={item.id}
            item={item}
            isRunning={isLive && index === items.length - 1}
            tookMs={tookMs(itemTimes, item.id)}
          />
        ))}
      </AnswerItemsContext>
      {isLive && <Waiting snapshot={snapshot} />}
      {state === "reconnecting" && (
        <p role="status" className="text-sm text-warn">
          The connection broke. Trying to go on…
        </p>
      )}
    </article>
  );
}

function Waiting({ snapshot: { answer, startedAt, pace, state, retry } }: { snapshot: StreamSnapshot }) {
  if (retry !== null) return <RetryNote retry={retry} />;
  if (answer.progress !== null) return <ProgressNote progress={answer.progress} />;
  if (answer.items.length === 0 || startedAt === null) return <p className="text-sm text-faint">Waiting…</p>;
  if (pace.perSecond === null || state !== "connected") return null;
  return <p className="text-xs tabular-nums text-faint">{sayPace(pace.perSecond)}</p>;
}

/** Says why the request waits in this page, until when, and for how long it has. */
function RetryNote({ retry: { message, since, at, until } }: { retry: Retry }) {
  const [now, setNow] = useState(() => performance.now());
  useEffect(() => {
    const timer = setInterval(() => setNow(performance.now()), 1000);
    return () => clearInterval(timer);
  }, []);
  const seconds = (ms: number) => durationText(Math.max(0, Math.round(ms / 1000)));
  return (
    <div className="text-sm text-faint">
      <p role="status">{showCode(message)}</p>
      {/* It changes each second: no news that is read out. */}
      <p aria-live="off" className="tabular-nums">
        {at > now ? `Asked again in ${seconds(at - now)}` : "Asked again now"}, waiting for {seconds(now - since)}, at
        most {seconds(until - since)}. Stop ends it.
      </p>
    </div>
  );
}

function tookMs(times: ItemTimes, id: string): number | null {
  const time = times[id];
  return time === undefined || time.until === null ? null : time.until - time.from;
}

function ProgressNote({ progress }: { progress: Progress }) {
  const share = progress.progress;
  return (
    <div role="status" className="flex items-center gap-2 text-sm text-faint">
      <span>{sayProgress(progress)}</span>
      {share !== null && <progress className="h-2 w-40" max={1} value={share} aria-label={sayProgress(progress)} />}
    </div>
  );
}

/** In words how long a place in the queue usually waits. */
function usualWait(p50Ms: number, p90Ms: number): string {
  const [usual, long] = [p50Ms, p90Ms].map((each) => Math.max(1, Math.round(each / 1000)));
  return usual === long ? `usually ${usual} s` : `usually ${usual} to ${long} s`;
}

function sayProgress({ stage, model, queuePosition, progress, promptTokens, waitP50Ms, waitP90Ms }: Progress): string {
  const percent = progress === null ? "" : ` ${Math.round(progress * 100)} %`;
  switch (stage) {
    case "queue": {
      const wait = waitP50Ms === null || waitP90Ms === null ? "" : `, ${usualWait(waitP50Ms, waitP90Ms)}`;
      // The API counts the request that is being answered, too: the first that waits has position 2.
      return queuePosition === null || queuePosition < 2
        ? `Waiting for ${model}${wait}`
        : `Number ${queuePosition - 1} in the queue of ${model}${wait}`;
    }
    case "load":
      return `Loading ${model}${percent}`;
    case "prefill":
      return promptTokens === null ? "Reading the prompt" : `Reading the prompt of ${promptTokens} tokens${percent}`;
  }
}
