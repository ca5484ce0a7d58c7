/** One conversation: its turns, the answer that is being made, and the composer. */
import { useQuery } from "@tanstack/react-query";
import { useEffect, useMemo, useState } from "react";
import { useClient } from "../../api/access";
import { describeError } from "../../api/client";
import type { ContentPart } from "../../api/items";
import { navigate } from "../../router";
import { ErrorNote } from "../../ui/controls";
import { Composer } from "../composer/composer";
import { conversationQuery, createConversation, itemsQuery, titleOf } from "../conversations";
import { groupTurns, growTree, pathTo } from "../item_tree";
import { usePreferences } from "../preferences";
import { useRun, useRuns } from "../runs";
import { ApprovalsProvider } from "./approvals";
import { RunningAnswer } from "./running_answer";
import { ThreadHeader } from "./thread_header";
import { TurnView } from "./turn_view";
import { useConversationActions } from "./use_conversation_actions";
import { useFollowedScroll } from "./use_followed_scroll";

export function Thread({ conversationId }: { conversationId: string | null }) {
  const client = useClient();
  const runs = useRuns();
  const run = useRun(conversationId);
  const isStored = conversationId !== null;
  const conversation = useQuery({ ...conversationQuery(client, conversationId ?? ""), enabled: isStored });
  const items = useQuery({ ...itemsQuery(client, conversationId ?? ""), enabled: isStored });
  const tree = useMemo(() => growTree(items.data ?? []), [items.data]);
  const activeId = conversation.data?.active_item_id ?? items.data?.at(-1)?.id ?? null;
  const path = useMemo(() => pathTo(tree, activeId), [tree, activeId]);
  const turns = useMemo(() => groupTurns(path), [path]);
  const actions = useConversationActions(conversation.data ?? null);
  const preferences = usePreferences();
  const [error, setError] = useState<unknown>(null);
  const scroll = useFollowedScroll();

  // An answer that this page did not begin: before a reload, or in another tab.
  useEffect(() => {
    if (conversationId === null) return;
    const follow = () => void runs.follow(conversationId).catch(() => {});
    follow();
    const timer = setInterval(() => document.visibilityState === "visible" && follow(), 3000);
    return () => clearInterval(timer);
  }, [conversationId, runs]);

  async function send(content: ContentPart[], text: string, model: string) {
    setError(null);
    try {
      if (conversationId === null) {
        const created = await createConversation(client, titleOf(text), { model }, preferences.keepInBrowser);
        navigate("chat", created.id, true);
        await actions.ask(created, content, null, model);
      } else if (conversation.data !== undefined) {
        await actions.ask(conversation.data, content, activeId, model);
      }
    } catch (problem) {
      setError(problem);
    }
  }

  return (
    <>
      {conversation.data !== undefined && (
        <ThreadHeader conversation={conversation.data} tree={tree} activeId={activeId} actions={actions} />
      )}
      <div
        ref={scroll.container}
        onScroll={scroll.onScroll}
        className="min-h-0 flex-1 overflow-y-auto"
        aria-label="Messages"
        role="log"
        // biome-ignore lint/a11y/noNoninteractiveTabindex: the keyboard scrolls it.
        tabIndex={0}
      >
        <div ref={scroll.content} className="mx-auto flex max-w-3xl flex-col gap-4 p-4">
          {!isStored && <h1 className="mt-[20vh] text-center text-2xl font-semibold">What can I do for you?</h1>}
          {items.error && <ErrorNote {...describeError(items.error)} />}
          <ApprovalsProvider path={path} isRunning={run !== null} actions={actions}>
            {turns.map((turn) => (
              <TurnView key={turn.question?.id ?? turn.answer[0]?.id} turn={turn} tree={tree} actions={actions} />
            ))}
          </ApprovalsProvider>
          {run !== null && <RunningAnswer stream={run} actions={actions} activeId={activeId} />}
          {error !== null && <ErrorNote {...describeError(error)} />}
        </div>
      </div>
      <Composer conversation={conversation.data ?? null} run={run} onSend={send} />
    </>
  );
}
