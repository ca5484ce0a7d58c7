/** The title of the conversation that is shown, and what can be done with all of it, in the page's bar. */
import { useState } from "react";
import { useClient } from "../../api/access";
import { describeError } from "../../api/client";
import { BarMenu, InBar } from "../../ui/bar";
import { Button, Dialog, ErrorNote } from "../../ui/controls";
import { Icon } from "../../ui/icons";
import { saveFile } from "../../ui/save_file";
import type { Conversation } from "../conversations";
import { type ItemTree, pathTo } from "../item_tree";
import { RenameDialog } from "../sidebar/conversation_entry";
import { FORMATS, type FormatName } from "../transfer/formats";
import { loadPortable } from "../transfer/portable_conversation";
import { writeShareHtml } from "../transfer/share_html";
import { TreeDialog } from "./tree_dialog";
import type { ConversationActions } from "./use_conversation_actions";

interface HeaderProps {
  conversation: Conversation;
  tree: ItemTree;
  activeId: string | null;
  actions: ConversationActions;
}

export function ThreadHeader({ conversation, tree, activeId, actions }: HeaderProps) {
  const [dialog, setDialog] = useState<"rename" | "tree" | "save" | null>(null);
  const close = () => setDialog(null);
  const title = conversation.metadata.title ?? "Untitled";
  return (
    <>
      <InBar>
        <h1 className="min-w-0 flex-1 truncate text-sm font-semibold md:text-right">{title}</h1>
        <BarMenu label="More actions" face={<Icon name="more" />} side="right">
          <Button look="quiet" icon="edit" onClick={() => setDialog("rename")}>
            Rename
          </Button>
          <Button look="quiet" icon="layers" onClick={() => setDialog("tree")}>
            Branches
          </Button>
          <Button look="quiet" icon="download" onClick={() => setDialog("save")}>
            Export
          </Button>
        </BarMenu>
      </InBar>
      <RenameDialog conversation={conversation} isOpen={dialog === "rename"} onClose={close} />
      <TreeDialog tree={tree} activeId={activeId} actions={actions} isOpen={dialog === "tree"} onClose={close} />
      <SaveDialog
        conversation={conversation}
        tree={tree}
        activeId={activeId}
        isOpen={dialog === "save"}
        onClose={close}
      />
    </>
  );
}

interface SaveProps extends Omit<HeaderProps, "actions"> {
  isOpen: boolean;
  onClose: () => void;
}

function SaveDialog({ conversation, tree, activeId, isOpen, onClose }: SaveProps) {
  const client = useClient();
  const [problem, setProblem] = useState<unknown>(null);

  async function save(name: FormatName | "html") {
    setProblem(null);
    try {
      const portable = await loadPortable(client, conversation.id);
      if (name === "html") {
        saveFile(`${portable.title}.html`, writeShareHtml(portable, pathTo(tree, activeId)), "text/html");
      } else {
        const json = JSON.stringify(FORMATS[name].write([portable]), null, 2);
        saveFile(`${portable.title}.${name}.json`, json, "application/json");
      }
      onClose();
    } catch (error) {
      setProblem(error);
    }
  }

  return (
    <Dialog title="Export conversation" isOpen={isOpen} onClose={onClose}>
      <p className="mb-2 text-sm text-faint">With all branches, as JSON in the form of:</p>
      <div className="mb-4 flex flex-wrap gap-2">
        {(Object.keys(FORMATS) as FormatName[]).map((name) => (
          <Button key={name} onClick={() => void save(name)}>
            {FORMATS[name].label}
          </Button>
        ))}
      </div>
      <p className="mb-2 text-sm text-faint">The branch that is shown, as one HTML file to read anywhere:</p>
      <Button onClick={() => void save("html")}>HTML file</Button>
      {problem !== null && <ErrorNote {...describeError(problem)} />}
    </Dialog>
  );
}
