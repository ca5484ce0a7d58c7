/** The journal's entries: those of the past, and new ones as they come. */
import { useCallback, useEffect, useRef, useState } from "react";
import { useClient } from "../api/access";
import { followStream } from "../api/follow_stream";
import { type Entry, type JournalFilter, mergeEntries, newestId, readHistory } from "./journal";

export interface Journal {
  entries: Entry[];
  /** Why entries are not read or followed just now; null: they are. */
  error: Error | null;
  isLoading: boolean;
  /** Whether older entries than these are kept. */
  hasOlder: boolean;
  readOlder: () => void;
}

/** Follows while `isFollowing`; what came meanwhile is caught up when the following goes on. */
export function useJournal(filter: JournalFilter, isFollowing: boolean): Journal {
  const client = useClient();
  const { model, kind } = filter;
  const [entries, setEntries] = useState<Entry[] | null>(null);
  const [error, setError] = useState<Error | null>(null);
  const [nextBefore, setNextBefore] = useState<number | null>(null);
  const newest = useRef<number | null>(null);

  useEffect(() => {
    const stop = { isStopped: false };
    setEntries(null);
    setError(null);
    newest.current = null;
    readHistory(client, { model, kind }, null).then(
      (page) => {
        if (stop.isStopped) return;
        newest.current = newestId(page.entries);
        setEntries(page.entries);
        setNextBefore(page.next_before);
      },
      (reason: Error) => {
        if (!stop.isStopped) setError(reason);
      },
    );
    return () => {
      stop.isStopped = true;
    };
  }, [client, model, kind]);

  const isRead = entries !== null;
  useEffect(() => {
    if (!isFollowing || !isRead) return;
    const stop = new AbortController();
    void followStream(client, {
      path: "/v1/admin/events",
      query: { model: model || null, kind: kind || null },
      readLastId: () => newest.current,
      signal: stop.signal,
      onState: setError,
      onEvent: ({ event, data }) => {
        // `gap`: older entries are gone; those that are kept follow. `error`: the stream ends, and is begun again.
        if (event === "gap" || event === "error") return;
        const entry = JSON.parse(data) as Entry;
        newest.current = entry.id;
        setEntries((known) => mergeEntries([entry], known ?? []));
      },
    });
    return () => stop.abort();
  }, [client, model, kind, isFollowing, isRead]);

  const readOlder = useCallback(() => {
    readHistory(client, { model, kind }, nextBefore).then((page) => {
      setEntries((known) => mergeEntries(known ?? [], page.entries));
      setNextBefore(page.next_before);
    }, setError);
  }, [client, model, kind, nextBefore]);

  return {
    entries: entries ?? [],
    error,
    isLoading: !isRead && error === null,
    hasOlder: nextBefore !== null,
    readOlder,
  };
}
