/** One turn: the user's message, and the items that answer it. */
import { memo, useState } from "react";
import { describeError } from "../../api/client";
import { type Item, textOf } from "../../api/items";
import { Button, ErrorNote, IconButton } from "../../ui/controls";
import { CopyButton } from "../../ui/copy_button";
import { Icon } from "../../ui/icons";
import { AnswerItemsContext } from "../markdown/citations";
import { FiguresLine } from "./answer_figures";
import { answerMarkdown } from "./answer_markdown";
import { ItemView } from "./item_view";
import type { ShownTurn } from "./shown_turns";
import type { ConversationActions } from "./use_conversation_actions";

interface TurnProps {
  turn: ShownTurn;
  actions: ConversationActions;
}

export const TurnView = memo(function TurnView({ turn, actions }: TurnProps) {
  const first = turn.answer[0];
  return (
    <div data-turn className="flex flex-col gap-3">
      {turn.question !== null && <Question item={turn.question} siblingIds={turn.questionIds} actions={actions} />}
      {turn.answer.length > 0 && (
        <article aria-label="Answer" className="flex flex-col gap-2">
          <AnswerItemsContext value={() => turn.answer}>
            {turn.answer.map((item) => (
              <ItemView key={item.id} item={item} isRunning={false} />
            ))}
          </AnswerItemsContext>
          <div className="flex flex-wrap items-center gap-1">
            <CopyButton label="Copy answer" text={() => answerMarkdown(turn.answer)} />
            {turn.question !== null && (
              <IconButton
                icon="repeat"
                label="Regenerate answer"
                onClick={() => void actions.regenerate(turn.question?.id ?? "")}
              >
                Regenerate
              </IconButton>
            )}
            {first !== undefined && <BranchPicker id={first.id} siblingIds={turn.answerIds} actions={actions} />}
            <FiguresLine items={turn.stored} />
          </div>
        </article>
      )}
    </div>
  );
});

interface QuestionProps {
  item: Item;
  siblingIds: readonly string[];
  actions: ConversationActions;
}

function Question({ item, siblingIds, actions }: QuestionProps) {
  const [draft, setDraft] = useState<string | null>(null);
  const [problem, setProblem] = useState<unknown>(null);

  async function save() {
    const others = (item.content ?? []).filter((part) => part.type !== "input_text");
    setProblem(null);
    try {
      await actions.edit(item, [{ type: "input_text", text: draft ?? "" }, ...others]);
      setDraft(null);
    } catch (error) {
      setProblem(error); // The draft stays: it is nowhere else.
    }
  }

  return (
    <article aria-label="Your message" className="flex max-w-[85%] flex-col items-end gap-1 self-end">
      {draft === null ? (
        <div className="rounded-2xl bg-bubble px-4 py-2">
          <ItemView item={item} isRunning={false} />
        </div>
      ) : (
        <div className="flex w-[min(36rem,80vw)] flex-col gap-2">
          <textarea
            aria-label="Edit message"
            value={draft}
            rows={Math.min(12, draft.split("\n").length + 1)}
            onChange={(event) => setDraft(event.target.value)}
            className="rounded-md border border-line bg-raised p-2"
          />
          <div className="flex justify-end gap-2">
            <Button onClick={() => setDraft(null)}>Cancel</Button>
            <Button look="main" icon="send" disabled={draft.trim() === ""} onClick={() => void save()}>
              Send
            </Button>
          </div>
        </div>
      )}
      {problem !== null && <ErrorNote {...describeError(problem)} />}
      <div className="flex items-center gap-1">
        <IconButton icon="edit" label="Edit message" onClick={() => setDraft(textOf(item))}>
          Edit
        </IconButton>
        <BranchPicker id={item.id} siblingIds={siblingIds} actions={actions} />
      </div>
    </article>
  );
}

interface BranchPickerProps {
  id: string;
  /** The item itself and its siblings, in order of creation. */
  siblingIds: readonly string[];
  actions: ConversationActions;
}

/** Moves between an item and its siblings. Shows nothing for an item without any. */
function BranchPicker({ id, siblingIds, actions }: BranchPickerProps) {
  if (siblingIds.length < 2) return null;
  const index = siblingIds.indexOf(id);
  const show = (chosen: string | undefined) => chosen !== undefined && void actions.showBranch(chosen);
  return (
    <fieldset className="flex items-center text-sm text-faint">
      <legend className="sr-only">Branches</legend>
      <IconButton
        label="Previous branch"
        data-shortcut="previous-branch"
        disabled={index === 0}
        onClick={() => show(siblingIds[index - 1])}
      >
        <Icon name="previous" />
      </IconButton>
      <span className="tabular-nums">
        {index + 1} / {siblingIds.length}
      </span>
      <IconButton
        label="Next branch"
        data-shortcut="next-branch"
        disabled={index === siblingIds.length - 1}
        onClick={() => show(siblingIds[index + 1])}
      >
        <Icon name="next" />
      </IconButton>
    </fieldset>
  );
}
