/** Answers that are being made, by conversation: they go on while the page shows something else. */
import { useQueryClient } from "@tanstack/react-query";
import { createContext, type ReactNode, use, useMemo, useRef, useSyncExternalStore } from "react";
import { useClient } from "../api/access";
import type { ApiClient } from "../api/client";
import { nameConversation, storeAnswer } from "./after_answer";
import type { Answer } from "./answer";
import { AnswerStream, type StreamSnapshot } from "./answer_stream";
import { conversationKeys } from "./conversations";
import { FigureStore } from "./figures";

interface LookedUp {
  conversation_id: string;
  state: string;
  is_done: boolean;
}

export class Runs {
  /** Tokens and times of the answers that this browser has read. */
  readonly figures = new FigureStore();
  readonly #client: ApiClient;
  readonly #onEnd: (conversationId: string, answer: Answer) => Promise<unknown>;
  readonly #streams = new Map<string, AnswerStream>();
  readonly #listeners = new Set<() => void>();

  /** `onEnd` stores the answer where the gateway did not, and reads the conversation's items anew. The answer of a run stays shown until it has. */
  constructor(client: ApiClient, onEnd: (conversationId: string, answer: Answer) => Promise<unknown>) {
    this.#client = client;
    this.#onEnd = onEnd;
  }

  subscribe = (listener: () => void): (() => void) => {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  };

  /** Returns the run of a conversation: a running answer, or one that ended and is not stored. Null: there is none. */
  find(conversationId: string): AnswerStream | null {
    return this.#streams.get(conversationId) ?? null;
  }

  /** Requests an answer. Returns when it is stored, or has failed. Throws ApiError if the request was refused. */
  async begin(conversationId: string, fields: Record<string, unknown>): Promise<void> {
    const stream = this.#add(conversationId);
    try {
      await stream.start(fields);
    } catch (error) {
      this.forget(conversationId);
      throw error;
    }
    await this.#settle(conversationId, stream);
  }

  /**
   * Follows an answer that another page, or this one before a reload, has begun; and one that a stop of the gateway cut,
   * of which the gateway still has the beginning. Does nothing if there is none, or it is followed already.
   */
  async follow(conversationId: string): Promise<void> {
    if (this.#streams.has(conversationId)) return;
    const body = { conversation_ids: [streamIdOf(conversationId)] };
    const [found] = await this.#client.request<LookedUp[]>("/v1/streams/lookup", { body });
    if (found === undefined || this.#streams.has(conversationId)) return;
    if (found.state !== "live" && found.state !== "cut") return;
    const stream = this.#add(conversationId);
    await stream.attach();
    await this.#settle(conversationId, stream);
  }

  /** Drops what is known of an ended run: its answer was stored by other means, or is not wanted. */
  forget(conversationId: string): void {
    this.#streams.get(conversationId)?.close();
    this.#streams.delete(conversationId);
    this.#changed();
  }

  #add(conversationId: string): AnswerStream {
    this.#streams.get(conversationId)?.close();
    const stream = new AnswerStream(this.#client, streamIdOf(conversationId));
    this.#streams.set(conversationId, stream);
    this.#changed();
    return stream;
  }

  async #settle(conversationId: string, stream: AnswerStream): Promise<void> {
    this.figures.keep(stream.snapshot);
    await this.#onEnd(conversationId, stream.snapshot.answer);
    if (this.#streams.get(conversationId) !== stream) return;
    const { status } = stream.snapshot.answer;
    // What is complete is among the stored items now. Anything else is nowhere but here.
    if (status === "completed" || status === "incomplete") this.forget(conversationId);
    else this.#changed();
  }

  #changed(): void {
    for (const listener of this.#listeners) listener();
  }
}

/** Returns the id of the resumable stream that a conversation's answers have. */
export function streamIdOf(conversationId: string): string {
  return `page/${conversationId}`;
}

const RunsContext = createContext<Runs | null>(null);

export function RunsProvider({ children }: { children: ReactNode }) {
  const client = useClient();
  const queries = useQueryClient();
  const runs = useMemo(() => {
    const refresh = () => queries.invalidateQueries({ queryKey: conversationKeys.all });
    return new Runs(client, async (conversationId, answer) => {
      await storeAnswer(conversationId, answer);
      await refresh();
      // A title is worth no error, and no wait: the answer is there.
      void nameConversation(client, conversationId)
        .then((isNamed) => (isNamed ? refresh() : undefined))
        .catch(() => {});
    });
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
