/** The answer that is being made: what it waits for, its text as it comes, and how it ended if it is not stored. */
import { Button, ErrorNote } from "../../ui/controls";
import { type Answer, hasContent, type Progress } from "../answer";
import type { AnswerStream } from "../answer_stream";
import type { ItemTimes } from "../figures";
import { AnswerItemsContext } from "../markdown/citations";
import { useRuns, useSnapshot } from "../runs";
import { ItemView } from "./item_view";
import type { ConversationActions } from "./use_conversation_actions";

interface RunningAnswerProps {
  stream: AnswerStream;
  actions: ConversationActions;
  /** The last item that is stored: the answer follows it. */
  activeId: string | null;
}

export function RunningAnswer({ stream, actions, activeId }: RunningAnswerProps) {
  const snapshot = useSnapshot(stream);
  if (snapshot === null) return null;
  const { answer, state, itemTimes } = snapshot;
  const isRunning = answer.status === "running" && state !== "lost";
  return (
    <article aria-label="Answer" aria-busy={isRunning} className="flex flex-col gap-2">
      <AnswerItemsContext value={answer.items}>
        {answer.items.map((item, index) => (
          <ItemView
            key={item.id}
            item={item}
            isRunning={isRunning && index === answer.items.length - 1}
            tookMs={tookMs(itemTimes, item.id)}
          />
        ))}
      </AnswerItemsContext>
      {isRunning && answer.progress !== null && <ProgressNote progress={answer.progress} />}
      {isRunning && answer.progress === null && answer.items.length === 0 && (
        <p className="text-sm text-faint">Waiting…</p>
      )}
      {state === "reconnecting" && (
        <p role="status" className="text-sm text-warn">
          The connection broke. Trying to go on…
        </p>
      )}
      {!isRunning && <CutNote answer={answer} isLost={state === "lost"} actions={actions} activeId={activeId} />}
    </article>
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

function sayProgress({ stage, model, queuePosition, progress, promptTokens }: Progress): string {
  const percent = progress === null ? "" : ` ${Math.round(progress * 100)} %`;
  switch (stage) {
    case "queue":
      return queuePosition === null ? `Waiting for ${model}` : `Number ${queuePosition} in the queue of ${model}`;
    case "load":
      return `Loading ${model}${percent}`;
    case "prefill":
      return promptTokens === null ? "Reading the prompt" : `Reading the prompt of ${promptTokens} tokens${percent}`;
  }
}

function CutNote({
  answer,
  isLost,
  actions,
  activeId,
}: {
  answer: Answer;
  isLost: boolean;
  actions: ConversationActions;
  activeId: string | null;
}) {
  const runs = useRuns();
  const isComplete = answer.status === "completed" || answer.status === "incomplete";
  if (isComplete && !isLost) return null;
  const isStopped = answer.error?.code === "stream_stopped";
  if (!hasContent(answer)) {
    return (
      <ErrorNote message={isStopped ? "You stopped this answer." : (answer.error?.message ?? "There is no answer.")} />
    );
  }
  return (
    <div role="status" className="flex flex-wrap items-center gap-2 text-sm text-warn" data-cut-answer>
      <span>
        {isStopped ? "You stopped this answer." : `This answer was cut short. ${answer.error?.message ?? ""}`}
      </span>
      <Button look="main" onClick={() => void actions.continueAnswer(answer, activeId)}>
        Continue
      </Button>
      <Button onClick={() => void actions.keepAnswer(answer, activeId)}>Keep as it is</Button>
      <Button
        look="quiet"
        onClick={() => {
          if (activeId !== null) void actions.regenerate(activeId);
          else runs.forget("");
        }}
      >
        Discard and try again
      </Button>
    </div>
  );
}
