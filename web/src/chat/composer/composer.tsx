/** Where the next message is written: text, attachments, model, settings, and the button that sends or stops. */
import { useIsMutating, useQuery } from "@tanstack/react-query";
import {
  type ClipboardEvent,
  type DragEvent,
  type FormEvent,
  type KeyboardEvent,
  useId,
  useMemo,
  useState,
} from "react";
import { useClient } from "../../api/access";
import { describeError } from "../../api/client";
import type { ContentPart, Item } from "../../api/items";
import { limitsQuery } from "../../api/limits";
import { chatModels, defaultModelQuery, modelsQuery } from "../../models/models";
import { Button, ErrorNote, IconButton } from "../../ui/controls";
import { Icon } from "../../ui/icons";
import { focusControl, isOfInputMethod } from "../../ui/keys";
import type { AnswerStream } from "../answer_stream";
import type { Conversation, ConversationSettings } from "../conversations";
import { storeLastModel } from "../last_model";
import { useIsRunning } from "../runs";
import { AttachButtons } from "./attach_button";
import { bytesOf, contentOf, modalitiesOf, modalitiesOfItems, sayBytes, unsupported } from "./attachment";
import { AttachmentList } from "./attachment_list";
import { useDraft } from "./drafts";
import { ModalityNote } from "./modality_note";
import { firstModel, LoadOffer, loadKey, ModelPicker } from "./model_picker";
import { appended, type PromptDraft } from "./server_offers/draft_of_prompt";
import { ServerOffersButton, ServerOffersDialog } from "./server_offers/server_offers";
import { SettingsDialog } from "./settings_dialog";
import { sayUsed } from "./sources";
import { Starters } from "./starters";
import { useSettings } from "./use_settings";

interface ComposerProps {
  /** Null: the first message begins a conversation. */
  conversationId: string | null;
  /** Null before its first message, and until it is read. */
  conversation: Conversation | null;
  /** Whether the conversation and its items are read, so that it is known what a message follows. */
  isRead: boolean;
  /** Items of the branch that the message follows. */
  path: readonly Item[];
  run: AnswerStream | null;
  /** Sends a message and returns when it is stored; throws if it is not. `text`: its text alone, for a title. */
  onSend: (content: ContentPart[], text: string, settings: ConversationSettings) => Promise<void>;
  /** Stops the answer that is being made. */
  onStop: () => void;
  /** Requests the answer that the last message lacks; null: it lacks none. */
  onAskAgain: (() => void) | null;
}

export function Composer(props: ComposerProps) {
  const { conversationId, conversation, isRead, path, run, onSend, onStop, onAskAgain } = props;
  const client = useClient();
  const noteId = useId();
  const listed = useQuery(modelsQuery(client)).data;
  const models = chatModels(listed ?? []);
  const byDefault = useQuery(defaultModelQuery(client)).data ?? null;
  const { text, setText, clear, attachments } = useDraft(conversationId);
  const inUse = useSettings(conversation);
  const [isSending, setSending] = useState(false);
  const [error, setError] = useState<unknown>(null);
  const [isSettingsOpen, setSettingsOpen] = useState(false);
  const [areOffersOpen, setOffersOpen] = useState(false);
  const [note, setNote] = useState<string | null>(null);
  const isRunning = useIsRunning(run);
  const set = inUse.settings.model;
  // A conversation keeps its model even if it is declared no more: its user is told.
  const name =
    set !== undefined && (conversationId !== null || listed === undefined) ? set : firstModel(models, set, byDefault);
  const model = models.find((each) => each.id === name || each.aliases.includes(name)) ?? null;
  const content = contentOf(text, attachments.list);
  // Counted once for all that is attached, and not for each key.
  const attachedBytes = useMemo(() => bytesOf(contentOf("", attachments.list)), [attachments.list]);
  const bytes = attachedBytes + bytesOf(contentOf(text, []));
  const mostBytes = useQuery(limitsQuery(client)).data?.max_body_bytes ?? Number.POSITIVE_INFINITY;
  const isTooLarge = bytes > mostBytes;
  const earlier = useMemo(() => modalitiesOfItems(path), [path]);
  const needed = new Set([...modalitiesOf(attachments.list.flatMap(({ parts }) => parts)), ...earlier]);
  const isTakeable = model === null || unsupported(model, needed).length === 0;
  const isComplete = content.length > 0 && attachments.reading === 0 && !isTooLarge && isTakeable;
  // Until the gateway has taken a load, it refuses what waits for it.
  const isLoadAsked = useIsMutating({ mutationKey: loadKey(model?.id ?? "") }) > 0;
  const used = sayUsed(inUse.settings);
  const isReady = isRead && isComplete && name !== "" && !isSending && !isRunning;
  const canSend = isReady && !isLoadAsked;
  const canAskAgain = onAskAgain !== null && content.length === 0 && !isRunning;

  async function submit(event?: FormEvent) {
    event?.preventDefault();
    if (canSend) await send();
  }

  async function send() {
    storeLastModel(name);
    setSending(true);
    setError(null);
    try {
      await onSend(content, text || (attachments.list[0]?.name ?? ""), { ...inUse.settings, model: name });
      clear();
      setNote(null);
    } catch (problem) {
      setError(problem);
    } finally {
      setSending(false);
    }
  }

  function choose(chosen: string) {
    // Also for conversations to come. What a starter brings with it is for this one.
    storeLastModel(chosen);
    inUse.change({ model: chosen });
  }

  function take({ text: added, files, note: told }: PromptDraft) {
    setText(appended(text, added));
    setNote(told);
    if (files.length > 0) void attachments.add(files);
  }

  function onKeyDown(event: KeyboardEvent<HTMLTextAreaElement>) {
    if (event.key === "Enter" && !event.shiftKey && !isOfInputMethod(event.nativeEvent)) {
      event.preventDefault();
      void submit();
    }
  }

  function onPaste(event: ClipboardEvent) {
    if (event.clipboardData.files.length === 0) return;
    event.preventDefault();
    void attachments.add([...event.clipboardData.files]);
  }

  function onDrop(event: DragEvent) {
    if (event.dataTransfer.files.length === 0) return;
    event.preventDefault();
    void attachments.add([...event.dataTransfer.files]);
  }

  return (
    <>
      <form
        onSubmit={(event) => void submit(event)}
        onDrop={onDrop}
        onDragOver={(event) => event.preventDefault()}
        aria-label="New message"
        className="mx-auto flex w-full max-w-3xl flex-col gap-2 p-3"
      >
        {error !== null && <ErrorNote {...describeError(error)} />}
        {inUse.error !== null && <ErrorNote {...describeError(inUse.error)} />}
        {model !== null && (
          <>
            <ModalityNote
              id={noteId}
              model={model}
              models={models}
              attachments={attachments}
              needed={needed}
              onChoose={choose}
            />
            <LoadOffer model={model} onTaken={isReady ? () => void send() : canAskAgain ? onAskAgain : null} />
          </>
        )}
        {isTooLarge && (
          <p role="alert" className="text-sm text-bad">
            The message has {sayBytes(bytes)}, and a request at most {sayBytes(mostBytes)}. Remove something.
          </p>
        )}
        {conversationId === null && content.length === 0 && listed !== undefined && (
          <Starters
            models={models}
            chosen={model}
            onChoose={({ text: started, settings }) => {
              setText(started);
              // Those of a starter that was chosen before go with its message.
              inUse.change({ collections: [], toolServers: [], ...settings });
              focusControl("message");
            }}
          />
        )}
        <AttachmentList attachments={attachments} />
        {note !== null && (
          <p role="status" className="break-words text-sm text-faint">
            {note}
          </p>
        )}
        <textarea
          data-shortcut="message"
          aria-label="Message"
          placeholder="Write a message"
          rows={Math.min(10, text.split("\n").length + 1)}
          value={text}
          onChange={(event) => setText(event.target.value)}
          onKeyDown={onKeyDown}
          onPaste={onPaste}
          className="resize-none rounded-lg border border-line bg-raised p-3"
        />
        {used !== null && (
          <button
            type="button"
            className="self-start text-sm text-faint underline underline-offset-2"
            onClick={() => setSettingsOpen(true)}
          >
            {used}
          </button>
        )}
        <div className="flex items-center gap-2">
          <AttachButtons onFiles={(files) => void attachments.add([...files])} />
          <ServerOffersButton onPress={() => setOffersOpen(true)} />
          <ModelPicker models={models} chosen={name} isDisabled={!isRead} onChoose={choose} />
          <IconButton label="Settings of this conversation" disabled={!isRead} onClick={() => setSettingsOpen(true)}>
            <Icon name="sliders" />
          </IconButton>
          <span className="flex-1" />
          {/* Two elements: a press that began on one is no click on the other, which took its place. */}
          {isRunning ? (
            <Button
              key="stop"
              icon="stop"
              data-shortcut="stop"
              // The second half of a double click on Send stops nothing.
              onClick={({ detail }) => {
                if (detail < 2) onStop();
              }}
            >
              Stop
            </Button>
          ) : (
            <Button
              key="send"
              look="main"
              icon="send"
              type="submit"
              disabled={!canSend}
              aria-describedby={isTakeable ? undefined : noteId}
            >
              Send
            </Button>
          )}
        </div>
      </form>
      <ServerOffersDialog isOpen={areOffersOpen} onClose={() => setOffersOpen(false)} onTake={take} />
      <SettingsDialog
        isOpen={isSettingsOpen}
        onClose={() => setSettingsOpen(false)}
        model={model?.id ?? ""}
        inUse={inUse}
      />
    </>
  );
}
