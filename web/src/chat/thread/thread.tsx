/** One conversation: its turns, the answer that is being made, and the composer. */
import { useQuery, useQueryClient } from "@tanstack/react-query";
import { useEffect, useMemo, useRef } from "react";
import { useClient } from "../../api/access";
import { describeError } from "../../api/client";
import type { ContentPart, Item } from "../../api/items";
import { navigate } from "../../router";
import { Button, ErrorNote } from "../../ui/controls";
import { Icon, Mark } from "../../ui/icons";
import type { AnswerStream } from "../answer_stream";
import { Composer } from "../composer/composer";
import {
  type ConversationSettings,
  conversationKeys,
  conversationQuery,
  createConversation,
  deleteConversation,
  itemsQuery,
  titleOf,
} from "../conversations";
import { growTree, isUserItem, pathTo } from "../item_tree";
import { usePreferences } from "../preferences";
import { useOwnAnswer, useRun, useRuns } from "../runs";
import { shownEnd } from "../shown_branch";
import { ApprovalsProvider } from "./approvals";
import { RunningAnswer } from "./running_answer";
import { ThreadHeader } from "./thread_header";
import { TurnList } from "./turn_list";
import { UnfinishedEnd } from "./unfinished_end";
import { useConversationActions } from "./use_conversation_actions";
import { useFollowedScroll } from "./use_followed_scroll";

/** Readings of the items that lacked the active one, before the newest of them is taken for it. */
const MOST_REREADS = 3;

export function Thread({ conversationId }: { conversationId: string | null }) {
  const client = useClient();
  const queries = useQueryClient();
  const runs = useRuns();
  const found = useRun(conversationId);
  const isStored = conversationId !== null;
  const conversation = useQuery({ ...conversationQuery(client, conversationId ?? ""), enabled: isStored });
  const items = useQuery({ ...itemsQuery(client, conversationId ?? ""), enabled: isStored });
  const tree = useMemo(() => growTree(items.data ?? []), [items.data]);
  const toldId = conversation.data?.active_item_id ?? null;
  const activeId = toldId !== null && tree.items.has(toldId) ? toldId : (items.data?.at(-1)?.id ?? null);
  const own = useOwnAnswer(conversationId);
  const endId = shownEnd(tree, activeId, own, found?.isOwn ?? false);
  const path = useMemo(() => pathTo(tree, endId), [tree, endId]);
  // Another tab's answer on another branch is none of what is shown here.
  const run = found !== null && isOn(path, found) ? found : null;
  const actions = useConversationActions(conversation.data ?? null, tree);
  const preferences = usePreferences();
  const scroll = useFollowedScroll();
  const isShown = useRef(false);
  useEffect(() => {
    isShown.current = true;
    return () => {
      isShown.current = false;
    };
  }, []);

  // An answer that this page did not begin: before a reload, or in another tab.
  useEffect(() => {
    if (conversationId === null) return;
    const follow = () => void runs.follow(conversationId).catch(() => {});
    follow();
    const timer = setInterval(() => document.visibilityState === "visible" && follow(), 3000);
    return () => clearInterval(timer);
  }, [conversationId, runs]);

  // The two are read at the same time, so the items may be those of a moment before. Another reading has the active one.
  const lacksActive = toldId !== null && items.isSuccess && !items.isFetching && !tree.items.has(toldId);
  const rereads = useRef({ toldId, count: 0 });
  useEffect(() => {
    if (conversationId === null || !lacksActive) return;
    const before = rereads.current.toldId === toldId ? rereads.current.count : 0;
    if (before >= MOST_REREADS) return;
    rereads.current = { toldId, count: before + 1 };
    void queries.invalidateQueries({ queryKey: conversationKeys.items(conversationId) });
  }, [conversationId, lacksActive, toldId, queries]);

  const last = path.at(-1);
  const unansweredId = last !== undefined && isUserItem(last) ? last.id : null;

  /** Returns when the message is stored. Throws if it could not be. */
  async function send(content: ContentPart[], text: string, settings: ConversationSettings) {
    const model = settings.model ?? "";
    if (conversationId !== null) {
      if (conversation.data === undefined) throw new Error("Wait until the conversation is read.");
      await actions.ask(conversation.data, content, endId, model);
      return scroll.toEnd();
    }
    const created = await createConversation(client, titleOf(text), settings, preferences.keepInBrowser);
    queries.setQueryData(conversationKeys.one(created.id), created);
    try {
      await actions.ask(created, content, null, model);
    } catch (error) {
      await deleteConversation(client, created.id).catch(() => {});
      throw error;
    }
    // The user may have gone elsewhere meanwhile.
    if (isShown.current) navigate("chat", created.id, true);
  }

  return (
    <>
      {conversation.data !== undefined && (
        <ThreadHeader conversation={conversation.data} tree={tree} activeId={endId} actions={actions} />
      )}
      <div className="relative flex min-h-0 flex-1 flex-col">
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
            {!isStored && (
              <div className="mt-[18vh] flex flex-col items-center gap-card">
                <Mark className="size-12" />
                <h1 className="text-center text-xl font-semibold">What can I do for you?</h1>
              </div>
            )}
            {items.error && <ErrorNote {...describeError(items.error)} />}
            <ApprovalsProvider path={path} isRunning={run?.isRunning ?? false} actions={actions}>
              {path.length > 0 && <TurnList path={path} tree={tree} actions={actions} />}
            </ApprovalsProvider>
            {run !== null && <RunningAnswer stream={run} tree={tree} />}
            {conversationId !== null && items.isSuccess && !items.isFetching && (
              <UnfinishedEnd conversationId={conversationId} path={path} run={run} actions={actions} />
            )}
          </div>
        </div>
        {scroll.isAway && (
          <Button
            className="absolute bottom-2 left-1/2 -translate-x-1/2 shadow"
            onClick={() => {
              scroll.toEnd();
              // The button is gone: the keyboard goes on in what it has scrolled.
              scroll.container.current?.focus({ preventScroll: true });
            }}
          >
            <Icon name="end" />
            To the end
          </Button>
        )}
      </div>
      <Composer
        conversationId={conversationId}
        conversation={conversation.data ?? null}
        isRead={!isStored || (conversation.isSuccess && items.isSuccess)}
        path={path}
        run={run}
        onSend={send}
        onStop={() => {
          // What can be done with a stopped answer is below it.
          scroll.toEnd();
          void run?.stop();
        }}
        onAskAgain={unansweredId === null ? null : () => void actions.regenerate(unansweredId)}
      />
    </>
  );
}

/** Returns whether a run's answer belongs to the end of a branch. */
function isOn(path: readonly Item[], { parentId, snapshot }: AnswerStream): boolean {
  const last = path.at(-1);
  if (parentId === null || last === undefined || last.id === parentId) return true;
  return snapshot.answer.items.some(({ id }) => id === last.id);
}
