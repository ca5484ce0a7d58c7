/** What a user does in a conversation: ask, regenerate, edit, move between branches, keep a cut answer, continue it. */
import { useQueryClient } from "@tanstack/react-query";
import { useMemo } from "react";
import { useClient } from "../../api/access";
import type { ContentPart, Item } from "../../api/items";
import type { Answer } from "../answer";
import { addItems, type Conversation, conversationKeys, updateConversation } from "../conversations";
import { type ItemTree, newestLeaf } from "../item_tree";
import { requestFields } from "../request_fields";
import { useRuns } from "../runs";
import { browserRequest } from "../stores/browser_request";
import { isInBrowser } from "../stores/browser_store";
import type { Decision } from "./approvals";
import { toolNameOf } from "./tool_call";

export interface ConversationActions {
  /** Adds the user's message below `parentId` and requests an answer to it. Returns when the answer ended. */
  ask: (conversation: Conversation, content: ContentPart[], parentId: string | null, model: string) => Promise<void>;
  /** Requests another answer below `parentId`, the item before the answer. */
  regenerate: (parentId: string) => Promise<void>;
  /** Adds another message in the place of one, and requests an answer to it. The old branch stays. */
  edit: (item: Item, content: ContentPart[]) => Promise<void>;
  /** Shows the newest branch through an item. */
  showBranch: (tree: ItemTree, id: string) => Promise<void>;
  /** Stores what was read of an answer that did not come to its end, below `parentId`. */
  keepAnswer: (answer: Answer, parentId: string | null) => Promise<void>;
  /** Stores it, and has the model go on from there. */
  continueAnswer: (answer: Answer, parentId: string | null) => Promise<void>;
  /** Answers requests for calls of tools, and has the answer go on. Tools that are always allowed are kept as such. */
  decideCalls: (decided: readonly { item: Item; decision: Decision }[]) => Promise<void>;
}

/** Returns the actions of a conversation. Those that need one throw while `shown` is null. */
export function useConversationActions(shown: Conversation | null): ConversationActions {
  const client = useClient();
  const runs = useRuns();
  const queries = useQueryClient();
  return useMemo(() => {
    const current = () => {
      if (shown === null) throw new Error("No conversation is shown.");
      return shown;
    };
    const refresh = (id: string) =>
      Promise.all([
        queries.invalidateQueries({ queryKey: conversationKeys.items(id) }),
        queries.invalidateQueries({ queryKey: conversationKeys.one(id) }),
      ]);
    const answer = async (conversation: Conversation, model?: string) => {
      const isOwn = isInBrowser(conversation.id);
      const fields = isOwn ? await browserRequest(conversation, model) : requestFields(conversation, model);
      await runs.begin(conversation.id, fields);
    };

    async function ask(conversation: Conversation, content: ContentPart[], parentId: string | null, model: string) {
      await addItems(client, conversation.id, [{ type: "message", role: "user", content }], parentId);
      await refresh(conversation.id);
      await answer(conversation, model);
    }

    async function keepAnswer(cut: Answer, parentId: string | null) {
      const conversation = current();
      const kept = cut.items.map((item) => (item.type === "message" ? { ...item, status: "incomplete" } : item));
      if (kept.length > 0) await addItems(client, conversation.id, kept.map(withoutId), parentId);
      await refresh(conversation.id);
      runs.forget(conversation.id);
    }

    return {
      ask,
      keepAnswer,
      async regenerate(parentId) {
        const conversation = current();
        await updateConversation(client, conversation.id, { active_item_id: parentId });
        await refresh(conversation.id);
        await answer(conversation);
      },
      async edit(item, content) {
        const conversation = current();
        await ask(conversation, content, item.parent_id, conversation.settings?.model ?? conversation.model ?? "");
      },
      async showBranch(tree, id) {
        const conversation = current();
        await updateConversation(client, conversation.id, { active_item_id: newestLeaf(tree, id) });
        await refresh(conversation.id);
      },
      async continueAnswer(cut, parentId) {
        await keepAnswer(cut, parentId);
        await answer(current());
      },
      async decideCalls(decided) {
        let conversation = current();
        const always = decided.filter(({ decision }) => decision === "always").map(({ item }) => toolNameOf(item));
        if (always.length > 0) {
          const approvedTools = [...new Set([...(conversation.settings?.approvedTools ?? []), ...always])];
          const settings = { ...conversation.settings, approvedTools };
          conversation = await updateConversation(client, conversation.id, { settings });
          await refresh(conversation.id);
        }
        const input = decided.map(({ item, decision }) => ({
          type: "mcp_approval_response",
          approval_request_id: item.id,
          approve: decision !== "refuse",
        }));
        if (isInBrowser(conversation.id)) {
          await addItems(client, conversation.id, input, conversation.active_item_id ?? null);
          await refresh(conversation.id);
          await answer(conversation);
        } else {
          // The gateway runs the calls that the request's own input approves, and adds that to the conversation.
          await runs.begin(conversation.id, { ...requestFields(conversation), input });
        }
      },
    };
  }, [client, runs, queries, shown]);
}

/** The gateway gives a new item its id: the old one may be known there already. */
function withoutId({ id: _, parent_id: __, ...item }: Item): object {
  return item;
}
