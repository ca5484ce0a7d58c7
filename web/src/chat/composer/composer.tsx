/** Where the next message is written: text, attachments, model, settings, and the button that sends or stops. */
import { useIsMutating, useQuery } from "@tanstack/react-query";
import { type ClipboardEvent, type DragEvent, type FormEvent, type KeyboardEvent, useMemo, useState } from "react";
import { useClient } from "../../api/access";
import { describeError } from "../../api/client";
import type { ContentPart, Item } from "../../api/items";
import { limitsQuery } from "../../api/limits";
import { chatModels, modelsQuery } from "../../models/models";
import { Button, ErrorNote, IconButton } from "../../ui/controls";
import { Icon } from "../../ui/icons";
import type { AnswerStream } from "../answer_stream";
import type { Conversation, ConversationSettings } from "../conversations";
import { useIsRunning } from "../runs";
import { AttachButtons } from "./attach_button";
import { bytesOf, contentOf, sayBytes } from "./attachment";
import { AttachmentList } from "./attachment_list";
import { ModalityNote } from "./modality_note";
import { LoadOffer, loadKey, ModelPicker } from "./model_picker";
import { appended, type PromptDraft } from "./server_offers/draft_of_prompt";
import { ServerOffersButton, ServerOffersDialog } from "./server_offers/server_offers";
import { SettingsDialog } from "./settings_dialog";
import { useAttachments } from "./use_attachments";
import { useDraft } from "./use_draft";
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
}

export function Composer({ conversationId, conversation, isRead, path, run, onSend }: ComposerProps) {
  const client = useClient();
  const models = chatModels(useQuery(modelsQuery(client)).data ?? []);
  const [text, setText] = useDraft(conversationId);
  const attachments = useAttachments();
  const inUse = useSettings(conversation);
  const [isSending, setSending] = useState(false);
  const [error, setError] = useState<unknown>(null);
  const [isSettingsOpen, setSettingsOpen] = useState(false);
  const [areOffersOpen, setOffersOpen] = useState(false);
  const [note, setNote] = useState<string | null>(null);
  const isRunning = useIsRunning(run);
  const name = inUse.settings.model ?? models[0]?.id ?? "";
  const model = models.find((each) => each.id === name || each.aliases.includes(name)) ?? null;
  const content = contentOf(text, attachments.list);
  // Counted once for all that is attached, and not for each key.
  const attachedBytes = useMemo(() => bytesOf(contentOf("", attachments.list)), [attachments.list]);
  const bytes = attachedBytes + bytesOf(contentOf(text, []));
  const mostBytes = useQuery(limitsQuery(client)).data?.max_body_bytes ?? Number.POSITIVE_INFINITY;
  const isTooLarge = bytes > mostBytes;
  const isComplete = content.length > 0 && attachments.reading === 0 && !isTooLarge;
  // Until the gateway has taken a load, it refuses what waits for it.
  const isLoadAsked = useIsMutating({ mutationKey: loadKey(model?.id ?? "") }) > 0;
  const canSend = isRead && isComplete && name !== "" && !isLoadAsked && !isSending;

  async function submit(event?: FormEvent) {
    event?.preventDefault();
    if (!canSend || isRunning) return;
    setSending(true);
    setError(null);
    try {
      await onSend(content, text || (attachments.list[0]?.name ?? ""), { ...inUse.settings, model: name });
      setText("");
      attachments.clear();
      setNote(null);
    } catch (problem) {
      setError(problem);
    } finally {
      setSending(false);
    }
  }

  function take({ text: added, files, note: told }: PromptDraft) {
    setText(appended(text, added));
    setNote(told);
    if (files.length > 0) void attachments.add(files);
  }

  function onKeyDown(event: KeyboardEvent<HTMLTextAreaElement>) {
    if (event.key === "Enter" && !event.shiftKey && !event.nativeEvent.isComposing) {
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
              model={model}
              models={models}
              attachments={attachments}
              path={path}
              onChoose={(chosen) => inUse.change({ model: chosen })}
            />
            <LoadOffer model={model} />
          </>
        )}
        {isTooLarge && (
          <p role="alert" className="text-sm text-bad">
            The message has {sayBytes(bytes)}, and a request at most {sayBytes(mostBytes)}. Remove something.
          </p>
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
        <div className="flex items-center gap-2">
          <AttachButtons onFiles={(files) => void attachments.add([...files])} />
          <ServerOffersButton onPress={() => setOffersOpen(true)} />
          <ModelPicker
            models={models}
            chosen={name}
            isDisabled={!isRead}
            onChoose={(chosen) => inUse.change({ model: chosen })}
          />
          <IconButton label="Settings of this conversation" disabled={!isRead} onClick={() => setSettingsOpen(true)}>
            <Icon name="sliders" />
          </IconButton>
          <span className="flex-1" />
          {/* Two elements: a press that began on one is no click on the other, which took its place. */}
          {isRunning ? (
            <Button
              key="stop"
              data-shortcut="stop"
              // The second half of a double click on Send stops nothing.
              onClick={({ detail }) => {
                if (detail < 2) void run?.stop();
              }}
            >
              Stop
            </Button>
          ) : (
            <Button key="send" look="main" type="submit" disabled={!canSend}>
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
