/** Answers that are being made, by conversation: they go on while the page shows something else. */
import { useQueryClient } from "@tanstack/react-query";
import { createContext, type ReactNode, use, useMemo, useRef, useSyncExternalStore } from "react";
import { useClient } from "../api/access";
import type { ApiClient } from "../api/client";
import { ApiError, NetworkError } from "../api/errors";
import { randomId } from "../api/items";
import { nameConversation } from "./after_answer";
import { partialItems } from "./answer";
import { AnswerStream, describe, type StreamSnapshot, streamPath } from "./answer_stream";
import { conversationKeys, storeOf } from "./conversations";
import { withFigures } from "./figures";
import { isUserItem } from "./item_tree";
import type { OwnAnswer } from "./shown_branch";
import { isInBrowser } from "./stores/browser_store";

interface FoundStream {
  conversation_id: string;
  state: "live" | "done" | "cut" | "stopped";
  started_at: number;
}

/** Milliseconds between tries to store an answer while another one is being made in its conversation, and their number. */
const LOCKED_MS = 500;
const LOCKED_TRIES = 20;

export class Runs {
  readonly #client: ApiClient;
  readonly #refresh: (conversationId: string) => Promise<unknown>;
  readonly #onComplete: (conversationId: string) => void;
  readonly #streams = new Map<string, AnswerStream>();
  readonly #listeners = new Set<() => void>();
  /** By conversation, the answer that this page has asked for last, unless its user has moved elsewhere. */
  readonly #ownAnswers = new Map<string, OwnAnswer>();
  /** Ids of streams that this page reads or has read. */
  readonly #seen = new Set<string>();

  /**
   * `refresh` reads a conversation and its items anew, and returns when that is done. `onComplete` is told of each
   * complete answer, after that.
   */
  constructor(
    client: ApiClient,
    refresh: (conversationId: string) => Promise<unknown>,
    onComplete: (conversationId: string) => void = () => {},
  ) {
    this.#client = client;
    this.#refresh = refresh;
    this.#onComplete = onComplete;
  }

  subscribe = (listener: () => void): (() => void) => {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  };

  /** Returns the run of a conversation: an answer that is being made, or one that ended otherwise than it should. */
  find(conversationId: string): AnswerStream | null {
    return this.#streams.get(conversationId) ?? null;
  }

  /** Returns the answer that decides which branch of a conversation this page shows; null: none does. */
  findOwnAnswer(conversationId: string): OwnAnswer | null {
    return this.#ownAnswers.get(conversationId) ?? null;
  }

  /** Lets this page show the active branch of a conversation, whichever answer it has asked for. */
  showActive(conversationId: string): void {
    this.#ownAnswers.delete(conversationId);
    this.#changed();
  }

  /**
   * Returns a new run, which is shown as waiting until `begin`. Throws if an answer that this page has asked for is being
   * made in the conversation; another tab's goes on without this page.
   */
  prepare(conversationId: string): AnswerStream {
    const run = this.find(conversationId);
    if (run?.isOwn && run.isRunning) throw new Error("Wait until the answer is complete, or stop it.");
    return this.#add(conversationId, newStreamId(conversationId, Date.now()), true);
  }

  /** Says which item the answer of a prepared run is to follow: this page shows the branch to that item from now on. */
  place(conversationId: string, stream: AnswerStream, parentId: string | null): void {
    stream.parentId = parentId;
    this.#ownAnswers.set(conversationId, { parentId, lastId: null });
    this.#changed();
  }

  /**
   * Requests the answer of a prepared run, which follows the item `parentId`. Returns when the answer has ended and what
   * came of it is stored. A refusal is the run's error.
   */
  async begin(
    conversationId: string,
    stream: AnswerStream,
    parentId: string | null,
    fields: Record<string, unknown>,
  ): Promise<void> {
    this.place(conversationId, stream, parentId);
    try {
      await stream.start(fields);
    } catch (error) {
      stream.refuse(describe(error));
    }
    await this.#settle(conversationId, stream);
  }

  /**
   * Follows an answer that another page, or this one before a reload, has begun; and reads one that was cut or stopped
   * and has not been stored. Does nothing if there is none, or it is followed already.
   */
  async follow(conversationId: string): Promise<void> {
    const known = this.find(conversationId);
    if (known?.isRunning) return;
    const body = { conversation_ids: [streamIdOf(conversationId)] };
    const found = await this.#client.request<FoundStream[]>("/v1/streams/lookup", { body });
    const newest = newestOf(found.filter((each) => !this.#seen.has(each.conversation_id)));
    if (newest === null || this.find(conversationId) !== known) return;
    // Of those that have ended, only the newest may lack its end in the conversation.
    for (const { conversation_id: id, state } of found) if (state !== "live") this.#seen.add(id);
    if (newest.state === "done" && !(isInBrowser(conversationId) && (await this.#lacksAnswer(conversationId)))) {
      if (known !== null) this.forget(conversationId);
      await this.#refresh(conversationId);
      return;
    }
    const stream = this.#add(conversationId, newest.conversation_id, false);
    stream.parentId = (await storeOf(this.#client, conversationId).get(conversationId)).active_item_id ?? null;
    // The question may be another page's.
    void this.#refresh(conversationId);
    await stream.attach();
    await this.#settle(conversationId, stream);
  }

  /** Drops what is known of a conversation's run. An answer that is being made goes on without this page. */
  forget(conversationId: string): void {
    this.#streams.get(conversationId)?.close();
    this.#streams.delete(conversationId);
    this.#changed();
  }

  /** Stops what is being made in a conversation, also by other pages, and forgets it: it is about to be deleted. */
  async discard(conversationId: string): Promise<void> {
    this.forget(conversationId);
    const body = { conversation_ids: [streamIdOf(conversationId)] };
    const found = await this.#client.request<FoundStream[]>("/v1/streams/lookup", { body });
    for (const { conversation_id: id, state } of found) {
      this.#seen.add(id);
      if (state === "live") await this.#client.request(streamPath(id), { method: "DELETE" });
    }
  }

  /** Returns whether the shown branch of a conversation ends with a message of the user, or with a decision about a call. */
  async #lacksAnswer(conversationId: string): Promise<boolean> {
    const store = storeOf(this.#client, conversationId);
    const [conversation, items] = await Promise.all([store.get(conversationId), store.listItems(conversationId)]);
    const last = items.find(({ id }) => id === conversation.active_item_id);
    return last !== undefined && (isUserItem(last) || last.type === "mcp_approval_response");
  }

  #add(conversationId: string, streamId: string, isOwn: boolean): AnswerStream {
    this.#streams.get(conversationId)?.close();
    const stream = new AnswerStream(this.#client, streamId, isOwn);
    this.#streams.set(conversationId, stream);
    this.#seen.add(streamId);
    this.#changed();
    return stream;
  }

  async #settle(conversationId: string, stream: AnswerStream): Promise<void> {
    if (this.find(conversationId) !== stream) return;
    const { status, items } = stream.snapshot.answer;
    const own = this.#ownAnswers.get(conversationId);
    // Another answer of this page below another item may have taken its place.
    if (stream.isOwn && own?.parentId === stream.parentId)
      this.#ownAnswers.set(conversationId, { parentId: own.parentId, lastId: items.at(-1)?.id ?? null });
    const isComplete = status === "completed" || status === "incomplete";
    // What cannot be stored stays readable where it is shown: in this run, with its error.
    await this.#store(conversationId, stream, isComplete).catch(() => {});
    await this.#refresh(conversationId);
    if (this.find(conversationId) !== stream) return;
    // What is complete is among the stored items now. Of anything else the run has the reason.
    if (isComplete) {
      this.forget(conversationId);
      this.#onComplete(conversationId);
    } else this.#changed();
  }

  /**
   * Stores what the gateway does not: a complete answer of a conversation in this browser, and what was read of any that
   * did not come to its end. The items keep their ids, so that it is stored once, however many pages have read it; and
   * not at all if the gateway has the whole of it.
   */
  async #store(conversationId: string, stream: AnswerStream, isComplete: boolean): Promise<void> {
    if (isComplete && !isInBrowser(conversationId)) return;
    const { snapshot } = stream;
    const kept = isComplete ? withFigures(snapshot) : partialItems(snapshot.answer);
    const items = kept.map(({ parent_id: _, ...item }) => item);
    const first = items[0];
    if (first === undefined) return;
    const store = storeOf(this.#client, conversationId);
    const isStored = async () => (await store.listItems(conversationId)).some(({ id }) => id === first.id);
    for (let tries = 0; !(await isStored()); tries += 1) {
      try {
        await store.addItems(conversationId, items, stream.parentId);
        return;
      } catch (error) {
        const isLocked = error instanceof ApiError && error.fields.code === "conversation_locked";
        if (!(isLocked || error instanceof NetworkError) || tries >= LOCKED_TRIES) throw error;
        await new Promise((resolve) => setTimeout(resolve, LOCKED_MS));
      }
    }
  }

  #changed(): void {
    for (const listener of this.#listeners) listener();
  }
}

function newestOf(found: readonly FoundStream[]): FoundStream | null {
  const live = found.find((each) => each.state === "live");
  if (live !== undefined) return live;
  return found.reduce<FoundStream | null>(
    (newest, each) => (newest === null || each.started_at >= newest.started_at ? each : newest),
    null,
  );
}

/**
 * Returns the id of the stream of a new answer. `now`: milliseconds of Unix time. Ids sort by time: the gateway lists streams
 * by id, and tells their beginning in seconds.
 */
export function newStreamId(conversationId: string, now: number): string {
  return `${streamIdOf(conversationId)}::${now.toString(36).padStart(9, "0")}-${randomId()}`;
}

/**
 * Returns what the ids of the resumable streams of a conversation's answers begin with. Each answer's own id goes on with
 * `::` and something random, so that no reader can go on in another answer; a look-up finds all of them.
 */
export function streamIdOf(conversationId: string): string {
  return `page/${conversationId}`;
}

const RunsContext = createContext<Runs | null>(null);

export function RunsProvider({ children }: { children: ReactNode }) {
  const client = useClient();
  const queries = useQueryClient();
  const runs = useMemo(() => {
    const refresh = () => queries.invalidateQueries({ queryKey: conversationKeys.all });
    // A title is worth no error, and no wait: the answer is there.
    const name = (conversationId: string) =>
      void nameConversation(client, conversationId)
        .then((isNamed) => (isNamed ? refresh() : undefined))
        .catch(() => {});
    return new Runs(client, refresh, name);
  }, [client, queries]);
  return <RunsContext value={runs}>{children}</RunsContext>;
}

export function useRuns(): Runs {
  const runs = use(RunsContext);
  if (runs === null) throw new Error("useRuns is used outside of RunsProvider");
  return runs;
}

/** Returns the stream of a conversation's run, and renders again when another one takes its place. */
export function useRun(conversationId: string | null): AnswerStream | null {
  const runs = useRuns();
  return useSyncExternalStore(runs.subscribe, () => (conversationId === null ? null : runs.find(conversationId)));
}

/** Returns the answer that this page has asked for last in a conversation, and renders again when it changes. */
export function useOwnAnswer(conversationId: string | null): OwnAnswer | null {
  const runs = useRuns();
  return useSyncExternalStore(runs.subscribe, () =>
    conversationId === null ? null : runs.findOwnAnswer(conversationId),
  );
}

/** Returns what a stream has read, and renders again at most once per frame. Null for no stream. */
export function useSnapshot(stream: AnswerStream | null): StreamSnapshot | null {
  const frame = useRef(0);
  return useSyncExternalStore(
    (changed) => {
      const atFrame = () => {
        if (frame.current !== 0) return;
        frame.current = requestAnimationFrame(() => {
          frame.current = 0;
          changed();
        });
      };
      const end = stream?.subscribe(atFrame);
      return () => {
        cancelAnimationFrame(frame.current);
        frame.current = 0;
        end?.();
      };
    },
    () => stream?.snapshot ?? null,
  );
}

/** Returns whether a stream's answer is being made; renders again when that changes, not for each piece. False for no stream. */
export function useIsRunning(stream: AnswerStream | null): boolean {
  return useSyncExternalStore(stream?.subscribe ?? subscribeToNothing, () => stream?.isRunning ?? false);
}

function subscribeToNothing(): () => void {
  return () => {};
}
