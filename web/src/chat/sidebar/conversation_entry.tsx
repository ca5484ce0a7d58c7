/** One conversation in the list: its title, where a search found its words, and what can be done with it. */
import { useQueryClient } from "@tanstack/react-query";
import { type FormEvent, useState } from "react";
import { useClient } from "../../api/access";
import { navigate, routeHash } from "../../router";
import { Button, Dialog, IconButton } from "../../ui/controls";
import { Icon } from "../../ui/icons";
import { useDrafts } from "../composer/drafts";
import { type Conversation, conversationKeys, deleteConversation, updateConversation } from "../conversations";
import { useRuns } from "../runs";
import { isInBrowser } from "../stores/browser_store";

interface EntryProps {
  conversation: Conversation;
  isShown: boolean;
  onChosen: () => void;
}

export function ConversationEntry({ conversation, isShown, onChosen }: EntryProps) {
  const [dialog, setDialog] = useState<"rename" | "delete" | null>(null);
  const title = conversation.metadata.title ?? "Untitled";
  const { hit } = conversation;
  return (
    <li className="group flex items-center">
      <a
        href={routeHash("chat", conversation.id)}
        onClick={onChosen}
        aria-current={isShown ? "page" : undefined}
        className="min-w-0 flex-1 rounded-md px-2 py-1.5 text-sm hover:bg-panel aria-[current=page]:bg-panel"
      >
        <span className="block truncate">{title}</span>
        {hit && hit.item_id !== null && (
          <span className="block truncate text-xs text-faint">
            {hit.before}
            <mark className="bg-transparent font-semibold text-accent">{hit.match}</mark>
            {hit.after}
          </span>
        )}
        {isInBrowser(conversation.id) && <span className="block text-xs text-faint">In this browser alone</span>}
        {conversation.running_response_id && <span className="block text-xs text-faint">Answering…</span>}
      </a>
      <span className="flex opacity-0 focus-within:opacity-100 group-hover:opacity-100 pointer-coarse:opacity-100">
        <IconButton label={`Rename ${title}`} onClick={() => setDialog("rename")}>
          <Icon name="edit" />
        </IconButton>
        <IconButton label={`Delete ${title}`} onClick={() => setDialog("delete")}>
          <Icon name="close" />
        </IconButton>
      </span>
      <RenameDialog conversation={conversation} isOpen={dialog === "rename"} onClose={() => setDialog(null)} />
      <DeleteDialog
        conversation={conversation}
        isShown={isShown}
        isOpen={dialog === "delete"}
        onClose={() => setDialog(null)}
      />
    </li>
  );
}

interface EntryDialogProps {
  conversation: Conversation;
  isOpen: boolean;
  onClose: () => void;
}

/** Changes the title of a conversation. */
export function RenameDialog({ conversation, isOpen, onClose }: EntryDialogProps) {
  const client = useClient();
  const queries = useQueryClient();
  const [title, setTitle] = useState(conversation.metadata.title ?? "");

  async function rename(event: FormEvent) {
    event.preventDefault();
    const metadata = { ...conversation.metadata, title: title.trim().slice(0, 512) };
    await updateConversation(client, conversation.id, { metadata });
    await queries.invalidateQueries({ queryKey: conversationKeys.all });
    onClose();
  }

  return (
    <Dialog title="Rename conversation" isOpen={isOpen} onClose={onClose}>
      <form onSubmit={(event) => void rename(event)} className="flex flex-col gap-3">
        <label className="flex flex-col gap-1 text-sm">
          Title
          <input
            required
            maxLength={512}
            value={title}
            onChange={(event) => setTitle(event.target.value)}
            className="rounded-md border border-line bg-raised px-3 py-2"
          />
        </label>
        <Button look="main" type="submit" className="self-end">
          Rename
        </Button>
      </form>
    </Dialog>
  );
}

function DeleteDialog({ conversation, isShown, isOpen, onClose }: EntryDialogProps & { isShown: boolean }) {
  const client = useClient();
  const queries = useQueryClient();
  const runs = useRuns();
  const drafts = useDrafts();

  async function remove() {
    await runs.discard(conversation.id);
    await deleteConversation(client, conversation.id);
    drafts.clear(conversation.id);
    if (isShown) navigate("chat", null, true);
    await queries.invalidateQueries({ queryKey: conversationKeys.all });
    onClose();
  }

  return (
    <Dialog title="Delete conversation" isOpen={isOpen} onClose={onClose}>
      <p className="mb-3">
        “{conversation.metadata.title ?? "Untitled"}” and all of its branches are deleted. This cannot be undone.
      </p>
      <div className="flex justify-end gap-2">
        <Button onClick={onClose}>Cancel</Button>
        <Button look="danger" icon="remove" onClick={() => void remove()}>
          Delete
        </Button>
      </div>
    </Dialog>
  );
}
