/** What a user does in a conversation: ask, regenerate, edit, move between branches, continue a cut answer. */
import { useQueryClient } from "@tanstack/react-query";
import { useMemo } from "react";
import { useClient } from "../../api/access";
import type { ContentPart, Item } from "../../api/items";
import { type AnswerStream, describe } from "../answer_stream";
import { addItems, type Conversation, conversationKeys, updateConversation } from "../conversations";
import { type ItemTree, newestLeaf } from "../item_tree";
import { requestFields } from "../request_fields";
import { useRuns } from "../runs";

export interface ConversationActions {
  /**
   * Stores the user's message below `parentId` and requests an answer to it. Returns when the message is stored: what
   * comes then is told by the conversation's run. Throws if it could not be stored, and then nothing was requested.
   */
  ask: (conversation: Conversation, content: ContentPart[], parentId: string | null, model: string) => Promise<void>;
  /** Requests another answer below `parentId`, the item before the answer. */
  regenerate: (parentId: string) => Promise<void>;
  /** Adds another message in the place of one, and requests an answer to it. The old branch stays. */
  edit: (item: Item, content: ContentPart[]) => Promise<void>;
  /** Shows the newest branch through an item. */
  showBranch: (tree: ItemTree, id: string) => Promise<void>;
  /** Has the model go on from the end of `cutId`, a stored answer that is incomplete. */
  continueAnswer: (cutId: string) => Promise<void>;
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

    /** Prepares with `prepare`, which returns the item that the answer follows, and requests the answer. */
    async function answer(
      conversation: Conversation,
      prepare: (run: AnswerStream) => Promise<string | null>,
      model?: string,
    ) {
      const run = runs.prepare(conversation.id);
      const parentId = await prepare(run);
      await refresh(conversation.id);
      void runs.begin(conversation.id, run, parentId, requestFields(conversation, model));
    }

    /** The same below an item that is stored. What goes wrong is told by the run. */
    function answerBelow(parentId: string) {
      const conversation = current();
      return answer(conversation, async (run) => {
        try {
          await updateConversation(client, conversation.id, { active_item_id: parentId });
        } catch (error) {
          run.refuse(describe(error));
          throw error;
        }
        return parentId;
      }).catch(() => {});
    }

    function ask(conversation: Conversation, content: ContentPart[], parentId: string | null, model: string) {
      const message = { type: "message", role: "user", content };
      return answer(
        conversation,
        async () => {
          try {
            const { data } = await addItems(client, conversation.id, [message], parentId);
            return data.at(-1)?.id ?? null;
          } catch (error) {
            runs.forget(conversation.id);
            throw error;
          }
        },
        model,
      );
    }

    return {
      ask,
      regenerate: answerBelow,
      continueAnswer: answerBelow,
      edit(item, content) {
        const conversation = current();
        return ask(conversation, content, item.parent_id, conversation.settings?.model ?? conversation.model ?? "");
      },
      async showBranch(tree, id) {
        const conversation = current();
        await updateConversation(client, conversation.id, { active_item_id: newestLeaf(tree, id) });
        await refresh(conversation.id);
      },
    };
  }, [client, runs, queries, shown]);
}
