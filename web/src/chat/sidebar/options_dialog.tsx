/** Import of conversations, and what holds for all of them: where new ones are kept, and who writes their titles. */
import { useQuery, useQueryClient } from "@tanstack/react-query";
import { type ChangeEvent, useState } from "react";
import { useClient } from "../../api/access";
import { describeError } from "../../api/client";
import { chatModels, modelsQuery } from "../../models/models";
import { navigate } from "../../router";
import { Dialog, ErrorNote } from "../../ui/controls";
import { conversationKeys } from "../conversations";
import { changePreferences, usePreferences } from "../preferences";
import { FORMATS, readConversations } from "../transfer/formats";
import { storePortable } from "../transfer/portable_conversation";

interface OptionsProps {
  isOpen: boolean;
  onClose: () => void;
  /** Called when an imported conversation is shown. */
  onImported: () => void;
}

export function OptionsDialog({ isOpen, onClose, onImported }: OptionsProps) {
  return (
    <Dialog title="Import and options" isOpen={isOpen} onClose={onClose}>
      <div className="flex flex-col gap-5">
        <Import
          onDone={() => {
            onClose();
            onImported();
          }}
        />
        <TitleModel />
        <Place />
      </div>
    </Dialog>
  );
}

function Import({ onDone }: { onDone: () => void }) {
  const client = useClient();
  const queries = useQueryClient();
  const { keepInBrowser } = usePreferences();
  const [problem, setProblem] = useState<unknown>(null);
  const [done, setDone] = useState<string | null>(null);

  async function read(event: ChangeEvent<HTMLInputElement>) {
    const file = event.target.files?.[0];
    event.target.value = "";
    if (file === undefined) return;
    setProblem(null);
    let count = 0;
    try {
      let last: string | null = null;
      const found = readConversations(await file.text());
      for (const each of found) {
        last = await storePortable(client, each, keepInBrowser);
        count += 1;
        setDone(`${count} of ${found.length} imported.`);
      }
      if (count === 1 && last !== null) {
        navigate("chat", last);
        onDone();
      }
    } catch (error) {
      setProblem(error);
    } finally {
      await queries.invalidateQueries({ queryKey: conversationKeys.all });
    }
  }

  const labels = Object.values(FORMATS).map((format) => format.label);
  return (
    <section>
      <h3 className="font-semibold">Import</h3>
      <p className="mb-2 text-sm text-faint">
        A JSON file that {labels.slice(0, -1).join(", ")} or {labels.at(-1)} exported.
      </p>
      <input
        type="file"
        accept=".json,application/json"
        aria-label="File of conversations"
        onChange={(event) => void read(event)}
        className="text-sm"
      />
      {done !== null && (
        <p role="status" className="mt-1 text-sm">
          {done}
        </p>
      )}
      {problem !== null && <ErrorNote {...describeError(problem)} />}
    </section>
  );
}

function TitleModel() {
  const client = useClient();
  const models = chatModels(useQuery(modelsQuery(client)).data ?? []);
  const { titleModel } = usePreferences();
  return (
    <section>
      <h3 className="font-semibold">Titles</h3>
      <label className="flex items-center gap-2 text-sm">
        Written by
        <select
          value={titleModel}
          onChange={(event) => changePreferences({ titleModel: event.target.value })}
          className="rounded-md border border-line bg-raised px-2 py-1.5"
        >
          <option value="">nobody: the first words are the title</option>
          {models.map((model) => (
            <option key={model.id} value={model.id}>
              {model.id}
            </option>
          ))}
        </select>
      </label>
    </section>
  );
}

function Place() {
  const { keepInBrowser } = usePreferences();
  return (
    <section>
      <h3 className="font-semibold">New conversations</h3>
      <label className="flex items-start gap-2 text-sm">
        <input
          type="checkbox"
          className="mt-1"
          checked={keepInBrowser}
          onChange={(event) => changePreferences({ keepInBrowser: event.target.checked })}
        />
        <span>
          Keep them in this browser alone. The gateway answers and stores nothing; another browser does not have them,
          and deleting this browser's data deletes them.
        </span>
      </label>
    </section>
  );
}
