/** The end of a conversation that lacks an answer, or whose answer is cut: why, and what can be done. */
import { type Item, textOf } from "../../api/items";
import { Button, ErrorNote } from "../../ui/controls";
import type { AnswerError } from "../answer";
import type { AnswerStream } from "../answer_stream";
import { isUserItem } from "../item_tree";
import { useIsRunning, useRuns } from "../runs";
import type { ConversationActions } from "./use_conversation_actions";

interface UnfinishedEndProps {
  conversationId: string;
  /** Items of the shown branch. */
  path: readonly Item[];
  run: AnswerStream | null;
  actions: ConversationActions;
}

export function UnfinishedEnd({ conversationId, path, run, actions }: UnfinishedEndProps) {
  const runs = useRuns();
  const isRunning = useIsRunning(run);
  if (isRunning) return null;
  const last = path.at(-1);
  const answer = run?.snapshot.answer;
  const error = reasonOf(answer?.error ?? null, answer?.items ?? [], path);
  const question = path.findLast(isUserItem);
  const isUnanswered = last !== undefined && last === question;
  const isCut = last?.status === "incomplete" && !isUnanswered;
  if (error === null && !isUnanswered && !isCut) return null;
  const canContinue = isCut && last.type === "message" && textOf(last) !== "";
  const note = sayEnd(error, isCut);
  return (
    <div data-unfinished={isCut ? "cut" : "unanswered"}>
      {error === null || error.code === "stream_stopped" ? (
        <p role="status" className="text-sm text-warn">
          {note}
        </p>
      ) : (
        <ErrorNote message={note} nextSteps={[...error.nextSteps]} />
      )}
      <div className="mt-1 flex flex-wrap gap-2">
        {canContinue && (
          <Button look="main" icon="play" onClick={() => void actions.continueAnswer(last.id)}>
            Continue
          </Button>
        )}
        {question !== undefined && (isCut || isUnanswered) ? (
          <Button icon="repeat" onClick={() => void actions.regenerate(question.id)}>
            Ask again
          </Button>
        ) : (
          <Button look="quiet" onClick={() => runs.forget(conversationId)}>
            Hide this
          </Button>
        )}
      </div>
    </div>
  );
}

/** Returns the error of a run, unless its answer is stored in a branch that is not shown. */
function reasonOf(error: AnswerError | null, items: readonly Item[], path: readonly Item[]): AnswerError | null {
  if (error === null || items.length === 0) return error;
  return path.some(({ id }) => items.some((item) => item.id === id)) ? error : null;
}

function sayEnd(error: AnswerError | null, isCut: boolean): string {
  if (error?.code === "stream_stopped") return "You stopped this answer.";
  if (isCut) return `This answer was cut short. ${error?.message ?? ""}`.trim();
  return error?.message ?? "This message has no answer yet.";
}
