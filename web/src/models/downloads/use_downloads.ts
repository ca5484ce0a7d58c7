/** All downloads, kept up by the stream of their progress. */
import { useQuery, useQueryClient } from "@tanstack/react-query";
import { useEffect, useState } from "react";
import { useClient } from "../../api/access";
import { followStream } from "../../api/follow_stream";
import { type Download, downloadKeys, downloadsQuery, EVENTS_PATH, isRunning, withDownload } from "./downloads";

/** Returns the list, and why it is not followed just now (null: it is). */
export function useDownloads() {
  const client = useClient();
  const queries = useQueryClient();
  const list = useQuery(downloadsQuery(client));
  const [streamError, setStreamError] = useState<Error | null>(null);
  useEffect(() => {
    const stop = new AbortController();
    void followStream(client, {
      path: EVENTS_PATH,
      signal: stop.signal,
      onState: setStreamError,
      onEvent: ({ event, data }) => {
        if (event !== "download") return;
        const download = JSON.parse(data) as Download;
        queries.setQueryData<Download[]>(downloadKeys.list, (known) => withDownload(known ?? [], download));
        if (!isRunning(download)) void queries.invalidateQueries({ queryKey: downloadKeys.files });
      },
    });
    return () => stop.abort();
  }, [client, queries]);
  return { downloads: list.data, error: list.error ?? streamError };
}
