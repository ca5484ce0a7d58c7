/** Where the next message is written: text, model, and the button that sends or stops. */
import { useQuery } from "@tanstack/react-query";
import { type FormEvent, type KeyboardEvent, useState } from "react";
import { useClient } from "../../api/access";
import type { ContentPart } from "../../api/items";
import { chatModels, modelsQuery } from "../../models/models";
import { Button } from "../../ui/controls";
import type { AnswerStream } from "../answer_stream";
import type { Conversation } from "../conversations";
import { useSnapshot } from "../runs";

interface ComposerProps {
  conversation: Conversation | null;
  run: AnswerStream | null;
  /** Sends a message. `text`: its text alone, for a title. */
  onSend: (content: ContentPart[], text: string, model: string) => Promise<void>;
}

export function Composer({ conversation, run, onSend }: ComposerProps) {
  const client = useClient();
  const models = chatModels(useQuery(modelsQuery(client)).data ?? []);
  const [text, setText] = useState("");
  const [chosen, setChosen] = useState<string | null>(null);
  const model = chosen ?? conversation?.settings?.model ?? conversation?.model ?? models[0]?.id ?? "";
  const snapshot = useSnapshot(run);
  const isRunning = snapshot !== null && snapshot.answer.status === "running" && snapshot.state !== "lost";

  function submit(event?: FormEvent) {
    event?.preventDefault();
    if (text.trim() === "" || isRunning || model === "") return;
    const content: ContentPart[] = [{ type: "input_text", text }];
    setText("");
    void onSend(content, text, model);
  }

  function onKeyDown(event: KeyboardEvent<HTMLTextAreaElement>) {
    if (event.key === "Enter" && !event.shiftKey && !event.nativeEvent.isComposing) {
      event.preventDefault();
      submit();
    }
  }

  return (
    <form onSubmit={submit} className="mx-auto flex w-full max-w-3xl flex-col gap-2 p-3">
      <textarea
        data-shortcut="message"
        aria-label="Message"
        placeholder="Write a message"
        rows={Math.min(10, text.split("\n").length + 1)}
        value={text}
        onChange={(event) => setText(event.target.value)}
        onKeyDown={onKeyDown}
        className="resize-none rounded-lg border border-line bg-raised p-3"
      />
      <div className="flex items-center gap-2">
        <select
          aria-label="Model"
          value={model}
          onChange={(event) => setChosen(event.target.value)}
          className="min-w-0 rounded-md border border-line bg-raised px-2 py-1.5 text-sm"
        >
          {models.map((each) => (
            <option key={each.id} value={each.id}>
              {each.id} ({each.state})
            </option>
          ))}
        </select>
        <span className="flex-1" />
        {isRunning ? (
          <Button data-shortcut="stop" onClick={() => void run?.stop()}>
            Stop
          </Button>
        ) : (
          <Button look="main" type="submit" disabled={text.trim() === "" || model === ""}>
            Send
          </Button>
        )}
      </div>
    </form>
  );
}
