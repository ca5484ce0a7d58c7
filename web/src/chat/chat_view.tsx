/** The chat: the list of conversations beside the conversation that is shown. */
import { useState } from "react";
import { InBar } from "../ui/bar";
import { IconButton } from "../ui/controls";
import { Icon } from "../ui/icons";
import { Sidebar } from "./sidebar/sidebar";
import { Thread } from "./thread/thread";

export function ChatView({ conversationId }: { conversationId: string | null }) {
  const [isListOpen, setListOpen] = useState(false);
  // A phone has room for one of the two.
  return (
    <div className="flex h-full flex-col md:flex-row">
      <InBar>
        <span className="order-first md:hidden">
          <IconButton
            label={isListOpen ? "Hide conversations" : "Show conversations"}
            aria-expanded={isListOpen}
            data-opens={isListOpen ? undefined : "search"}
            onClick={() => setListOpen(!isListOpen)}
          >
            <Icon name="list" />
          </IconButton>
        </span>
      </InBar>
      <div
        className={`${isListOpen ? "flex" : "hidden"} min-h-0 flex-1 flex-col border-line md:flex md:w-72 md:flex-none md:border-r`}
      >
        <Sidebar shownId={conversationId} onChosen={() => setListOpen(false)} />
      </div>
      <section
        aria-label="Conversation"
        className={`${isListOpen ? "max-md:hidden" : ""} flex min-h-0 min-w-0 flex-1 flex-col`}
      >
        <Thread key={conversationId ?? "new"} conversationId={conversationId} />
      </section>
    </div>
  );
}
