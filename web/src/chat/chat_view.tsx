/** The chat: the list of conversations beside the conversation that is shown. */
import { useState } from "react";
import { Button } from "../ui/controls";
import { Sidebar } from "./sidebar/sidebar";
import { Thread } from "./thread/thread";

export function ChatView({ conversationId }: { conversationId: string | null }) {
  const [isListOpen, setListOpen] = useState(false);
  return (
    <div className="flex h-full">
      <div
        className={`${isListOpen ? "flex" : "hidden"} w-72 max-w-[85vw] shrink-0 flex-col border-r border-line md:flex`}
      >
        <Sidebar shownId={conversationId} onChosen={() => setListOpen(false)} />
      </div>
      <section aria-label="Conversation" className="flex min-w-0 flex-1 flex-col">
        <Button
          look="quiet"
          className="self-start md:hidden"
          aria-expanded={isListOpen}
          onClick={() => setListOpen(!isListOpen)}
        >
          {isListOpen ? "Hide conversations" : "Show conversations"}
        </Button>
        <Thread key={conversationId ?? "new"} conversationId={conversationId} />
      </section>
    </div>
  );
}
