/** The conversations, the one used last first, with a search over titles and texts. */
import { useQuery } from "@tanstack/react-query";
import { useDeferredValue, useEffect, useState } from "react";
import { useClient } from "../../api/access";
import { describeError } from "../../api/client";
import { navigate } from "../../router";
import { Button, ErrorNote } from "../../ui/controls";
import { conversationsQuery } from "../conversations";
import { STALE_EVENT } from "../stores/copies";
import { ConversationEntry } from "./conversation_entry";
import { groupByDay } from "./group_by_day";
import { OptionsDialog } from "./options_dialog";

export function Sidebar({ shownId, onChosen }: { shownId: string | null; onChosen: () => void }) {
  const client = useClient();
  const [search, setSearch] = useState("");
  const [areOptionsOpen, setOptionsOpen] = useState(false);
  const conversations = useQuery(conversationsQuery(client, useDeferredValue(search.trim())));
  const isStale = useIsStale();

  return (
    <nav aria-label="Conversations" className="flex min-h-0 flex-1 flex-col gap-2 p-2">
      <Button
        look="main"
        icon="plus"
        onClick={() => {
          navigate("chat");
          onChosen();
        }}
      >
        New conversation
      </Button>
      <input
        type="search"
        aria-label="Search conversations"
        data-shortcut="search"
        placeholder="Search"
        value={search}
        onChange={(event) => setSearch(event.target.value)}
        className="rounded-md border border-line bg-raised px-3 py-1.5 text-sm"
      />
      {isStale && (
        <p role="status" className="rounded-md border border-warn px-2 py-1 text-sm">
          The gateway cannot be reached. Shown is this browser's copy.
        </p>
      )}
      {conversations.error && <ErrorNote {...describeError(conversations.error)} />}
      <div className="min-h-0 flex-1 overflow-y-auto">
        {conversations.data?.length === 0 && (
          <p className="p-2 text-sm text-faint">{search.trim() === "" ? "No conversations yet." : "Nothing found."}</p>
        )}
        {groupByDay(conversations.data ?? [], Date.now() / 1000).map(({ label, conversations: group }) => (
          <section key={label} aria-label={label}>
            <h2 className="px-2 pt-2 text-xs font-semibold text-faint">{label}</h2>
            <ul>
              {group.map((conversation) => (
                <ConversationEntry
                  key={conversation.id}
                  conversation={conversation}
                  isShown={conversation.id === shownId}
                  onChosen={onChosen}
                />
              ))}
            </ul>
          </section>
        ))}
      </div>
      <Button look="quiet" icon="sliders" onClick={() => setOptionsOpen(true)}>
        Import and options
      </Button>
      <OptionsDialog isOpen={areOptionsOpen} onClose={() => setOptionsOpen(false)} onImported={onChosen} />
    </nav>
  );
}

/** Returns whether what is shown came from this browser's copies the last time. */
function useIsStale(): boolean {
  const [isStale, setStale] = useState(false);
  useEffect(() => {
    const follow = (event: Event) => setStale((event as CustomEvent<boolean>).detail);
    addEventListener(STALE_EVENT, follow);
    return () => removeEventListener(STALE_EVENT, follow);
  }, []);
  return isStale;
}
