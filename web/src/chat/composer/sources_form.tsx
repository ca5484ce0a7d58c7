/** Chooses the servers of tools and the collections of documents of a conversation. */
import { useQuery } from "@tanstack/react-query";
import { useClient } from "../../api/access";
import { describeError } from "../../api/client";
import { ErrorNote } from "../../ui/controls";
import type { ConversationSettings } from "../conversations";
import { ALL_DOCUMENTS, collectionsQuery, toolSourcesQuery } from "./sources";

interface SourcesFormProps {
  settings: ConversationSettings;
  onChange: (changed: Partial<ConversationSettings>) => void;
}

export function SourcesForm({ settings, onChange }: SourcesFormProps) {
  const client = useClient();
  const sources = useQuery(toolSourcesQuery(client));
  const collections = useQuery(collectionsQuery(client));
  const servers = settings.toolServers ?? [];
  const chosen = settings.collections ?? [];
  return (
    <>
      <fieldset>
        <legend className="mb-1 text-sm font-semibold">Tools that the model may call</legend>
        {sources.error && <ErrorNote {...describeError(sources.error)} />}
        {sources.data?.length === 0 && <p className="text-sm text-faint">No tools are enabled for you.</p>}
        {sources.data?.map(({ label, title, tools, isConnected }) => (
          <Choice
            key={label}
            title={title}
            note={`${tools.join(", ")}${isConnected ? "" : " (not connected)"}`}
            isChosen={servers.includes(label)}
            onChange={(isChosen) => onChange({ toolServers: toggled(servers, label, isChosen) })}
          />
        ))}
      </fieldset>
      <fieldset>
        <legend className="mb-1 text-sm font-semibold">Documents that answers are grounded on</legend>
        {collections.error && <ErrorNote {...describeError(collections.error)} />}
        {collections.isSuccess && (
          <Choice
            title="All your documents"
            note="Those that are added under Documents, without those of vector stores"
            isChosen={chosen.includes(ALL_DOCUMENTS)}
            onChange={(isChosen) => onChange({ collections: toggled(chosen, ALL_DOCUMENTS, isChosen) })}
          />
        )}
        {collections.data?.map(({ id, name, file_counts: counts }) => (
          <Choice
            key={id}
            title={name ?? id}
            note={`${counts.completed} of ${counts.total} files are ready`}
            isChosen={chosen.includes(id)}
            onChange={(isChosen) => onChange({ collections: toggled(chosen, id, isChosen) })}
          />
        ))}
      </fieldset>
    </>
  );
}

interface ChoiceProps {
  title: string;
  note: string;
  isChosen: boolean;
  onChange: (isChosen: boolean) => void;
}

function Choice({ title, note, isChosen, onChange }: ChoiceProps) {
  return (
    <label className="flex items-start gap-2 py-1 text-sm">
      <input type="checkbox" checked={isChosen} onChange={({ target }) => onChange(target.checked)} className="mt-1" />
      <span className="min-w-0">
        <span className="block">{title}</span>
        <span className="block break-words text-xs text-faint">{note}</span>
      </span>
    </label>
  );
}

function toggled(values: readonly string[], value: string, isChosen: boolean): string[] {
  const others = values.filter((each) => each !== value);
  return isChosen ? [...others, value] : others;
}
