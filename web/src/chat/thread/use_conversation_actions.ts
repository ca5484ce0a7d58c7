/** What a user does in a conversation: ask, regenerate, edit, move between branches, continue a cut answer. */
import { useQueryClient } from "@tanstack/react-query";
import { useLayoutEffect, useMemo, useRef } from "react";
import { useClient } from "../../api/access";
import { type ContentPart, type Item, randomId } from "../../api/items";
import { type AnswerStream, describe } from "../answer_stream";
import { addItems, type Conversation, conversationKeys, updateConversation } from "../conversations";
import { type ItemTree, newestLeaf } from "../item_tree";
import { requestFields } from "../request_fields";
import { useRuns } from "../runs";
import { browserRequest } from "../stores/browser_request";
import { isInBrowser } from "../stores/browser_store";
import type { Decision } from "./approvals";
import { toolNameOf } from "./tool_call";

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
  showBranch: (id: string) => Promise<void>;
  /** Has the model go on from the end of `cutId`, a stored answer that is incomplete. */
  continueAnswer: (cutId: string) => Promise<void>;
  /**
   * Answers requests for calls of tools below `parentId`, and has the answer go on. Tools that are always allowed are kept
   * as such. Throws if the gateway refused that.
   */
  decideCalls: (decided: readonly { item: Item; decision: Decision }[], parentId: string) => Promise<void>;
}

/**
 * Returns the actions of a conversation and its tree. Those that need a conversation throw while `shown` is null. The
 * actions stay the same objects while the conversation changes, so that no turn is rendered anew for them.
 */
export function useConversationActions(shown: Conversation | null, tree: ItemTree): ConversationActions {
  const client = useClient();
  const runs = useRuns();
  const queries = useQueryClient();
  const newest = useRef({ shown, tree });
  useLayoutEffect(() => {
    newest.current = { shown, tree };
  }, [shown, tree]);
  return useMemo(() => {
    const current = () => {
      const { shown } = newest.current;
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
      runs.place(conversation.id, run, parentId);
      void queries.invalidateQueries({ queryKey: conversationKeys.list("").slice(0, 2) });
      await refresh(conversation.id);
      void request(conversation, run, parentId, model).catch((error: unknown) => run.refuse(describe(error)));
    }

    async function request(conversation: Conversation, run: AnswerStream, parentId: string | null, model?: string) {
      const isOwn = isInBrowser(conversation.id);
      const fields = isOwn
        ? await browserRequest(conversation, parentId, model)
        : requestFields(conversation, parentId, model);
      await runs.begin(conversation.id, run, parentId, fields);
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
      const id = `msg_${randomId()}`;
      const message = { id, type: "message", role: "user", content };
      return answer(
        conversation,
        async () => {
          try {
            await addItems(client, conversation.id, [message], parentId);
            return id;
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
      async showBranch(id) {
        const conversation = current();
        await updateConversation(client, conversation.id, { active_item_id: newestLeaf(newest.current.tree, id) });
        runs.showActive(conversation.id);
        await refresh(conversation.id);
      },
      async decideCalls(decided, parentId) {
        let conversation = current();
        const always = decided.filter(({ decision }) => decision === "always").map(({ item }) => toolNameOf(item));
        if (always.length > 0) {
          const approvedTools = [...new Set([...(conversation.settings?.approvedTools ?? []), ...always])];
          const settings = { ...conversation.settings, approvedTools };
          conversation = await updateConversation(client, conversation.id, { settings });
          await refresh(conversation.id);
        }
        const input = decided.map(({ item, decision }) => ({
          id: `mcpa_${randomId()}`,
          type: "mcp_approval_response",
          approval_request_id: item.id,
          approve: decision !== "refuse",
        }));
        const run = runs.prepare(conversation.id);
        if (isInBrowser(conversation.id)) {
          await addItems(client, conversation.id, input, parentId);
          await refresh(conversation.id);
          // What comes of the calls follows the answers: beside them it would be another branch, without them.
          await request(conversation, run, input.at(-1)?.id ?? parentId);
        } else {
          // The gateway runs the calls that the request's own input approves, and adds that to the conversation.
          await runs.begin(conversation.id, run, parentId, { ...requestFields(conversation, parentId), input });
        }
        const { answer: made } = run.snapshot;
        if (made.responseId !== null || made.error === null) return;
        runs.forget(conversation.id);
        throw new Error(made.error.message);
      },
    };
  }, [client, runs, queries]);
}
