/** The conversations, the one used last first, with a search over titles and texts. */
import { useQuery, useQueryClient } from "@tanstack/react-query";
import { useDeferredValue, useState } from "react";
import { useClient } from "../../api/access";
import { describeError } from "../../api/client";
import { navigate, routeHash } from "../../router";
import { Button, ErrorNote, IconButton } from "../../ui/controls";
import { conversationKeys, conversationsQuery, deleteConversation } from "../conversations";
import { useRuns } from "../runs";

export function Sidebar({ shownId, onChosen }: { shownId: string | null; onChosen: () => void }) {
  const client = useClient();
  const queries = useQueryClient();
  const runs = useRuns();
  const [search, setSearch] = useState("");
  const conversations = useQuery(conversationsQuery(client, useDeferredValue(search.trim())));

  async function remove(id: string) {
    await runs.discard(id);
    await deleteConversation(client, id);
    if (id === shownId) navigate("chat", null, true);
    await queries.invalidateQueries({ queryKey: conversationKeys.all });
  }

  return (
    <nav aria-label="Conversations" className="flex min-h-0 flex-1 flex-col gap-2 p-2">
      <Button
        look="main"
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
        placeholder="Search"
        value={search}
        onChange={(event) => setSearch(event.target.value)}
        className="rounded-md border border-line bg-raised px-3 py-1.5 text-sm"
      />
      {conversations.error && <ErrorNote {...describeError(conversations.error)} />}
      <ul className="min-h-0 flex-1 overflow-y-auto">
        {conversations.data?.map((conversation) => (
          <li key={conversation.id} className="group flex items-center">
            <a
              href={routeHash("chat", conversation.id)}
              onClick={onChosen}
              aria-current={conversation.id === shownId ? "page" : undefined}
              className="min-w-0 flex-1 rounded-md px-2 py-1.5 text-sm hover:bg-panel aria-[current=page]:bg-panel"
            >
              <span className="block truncate">{conversation.metadata.title ?? "Untitled"}</span>
              {conversation.snippet && (
                <span className="block truncate text-xs text-faint">{conversation.snippet}</span>
              )}
            </a>
            <IconButton
              label={`Delete ${conversation.metadata.title ?? "conversation"}`}
              className="opacity-0 group-hover:opacity-100 focus:opacity-100"
              onClick={() => void remove(conversation.id)}
            >
              ✕
            </IconButton>
          </li>
        ))}
      </ul>
    </nav>
  );
}
