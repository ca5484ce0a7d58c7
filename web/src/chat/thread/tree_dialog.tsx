/** All branches of a conversation as an outline; a message that is chosen is shown, with what follows it. */
import { type Item, textOf } from "../../api/items";
import { Dialog } from "../../ui/controls";
import { type ItemTree, pathTo, ROOT } from "../item_tree";
import type { ConversationActions } from "./use_conversation_actions";

interface TreeDialogProps {
  tree: ItemTree;
  activeId: string | null;
  actions: ConversationActions;
  onClose: () => void;
}

export function TreeDialog({ isOpen, ...rest }: TreeDialogProps & { isOpen: boolean }) {
  return (
    <Dialog title="Branches" isOpen={isOpen} onClose={rest.onClose}>
      <Outline {...rest} />
    </Dialog>
  );
}

/** A component of its own, so that a dialog that is closed makes no outline. */
function Outline({ tree, activeId, actions, onClose }: TreeDialogProps) {
  const active = new Set(pathTo(tree, activeId).map((item) => item.id));
  return (
    <ol className="flex flex-col">
      {outline(tree).map(({ item, depth }) => (
        <li key={item.id} style={{ paddingInlineStart: `${Math.min(depth, 12)}rem` }}>
          <button
            type="button"
            aria-current={active.has(item.id) ? "true" : undefined}
            className="w-full truncate rounded-md px-2 py-1 text-left text-sm text-faint hover:bg-panel aria-[current=true]:font-semibold aria-[current=true]:text-text"
            onClick={() => {
              onClose();
              void actions.showBranch(item.id);
            }}
          >
            {item.role === "assistant" ? "Answer: " : "You: "}
            {textOf(item).slice(0, 200) || "(no text)"}
          </button>
        </li>
      ))}
    </ol>
  );
}

interface OutlineEntry {
  item: Item;
  /** Number of forks before it: a line of messages without a fork stays in its column. */
  depth: number;
}

/** Returns the messages of all branches, each branch after the message it leaves. Items that are no messages are left out. */
export function outline(tree: ItemTree): OutlineEntry[] {
  const entries: OutlineEntry[] = [];
  const open: { id: string; depth: number }[] = [...(tree.children.get(ROOT) ?? [])]
    .reverse()
    .map((id) => ({ id, depth: 0 }));
  for (let next = open.pop(); next !== undefined; next = open.pop()) {
    const item = tree.items.get(next.id);
    if (item === undefined) continue;
    if (item.type === "message" && (item.role === "user" || item.role === "assistant"))
      entries.push({ item, depth: next.depth });
    const children = tree.children.get(next.id) ?? [];
    const depth = children.length > 1 ? next.depth + 1 : next.depth;
    open.push(...[...children].reverse().map((id) => ({ id, depth })));
  }
  return entries;
}
