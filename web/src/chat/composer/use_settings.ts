/** The settings of the conversation that is written in: stored with it, or kept until its first message is sent. */
import { useQueryClient } from "@tanstack/react-query";
import { useCallback, useRef, useState } from "react";
import { useClient } from "../../api/access";
import { type Conversation, type ConversationSettings, conversationKeys, updateConversation } from "../conversations";
import { readLastModel } from "../last_model";

export interface SettingsInUse {
  settings: ConversationSettings;
  /** Changes some of the settings. A value that is undefined removes one. */
  change: (changed: Partial<ConversationSettings>) => void;
  /** Why the last change was not stored; null: it was. */
  error: unknown;
}

export function useSettings(conversation: Conversation | null): SettingsInUse {
  const client = useClient();
  const queries = useQueryClient();
  const [first, setFirst] = useState<ConversationSettings>(() => ({ model: readLastModel() }) as ConversationSettings);
  const [error, setError] = useState<unknown>(null);
  // What is being stored: the conversation may be read again meanwhile, as it was before.
  const [pending, setPending] = useState<{ id: string; settings: ConversationSettings } | null>(null);
  const pendingOf = useRef(pending);
  const id = conversation?.id ?? null;
  const stored = pending !== null && pending.id === id ? pending.settings : (conversation?.settings ?? {});
  const settings = conversation === null ? first : { ...withModel(conversation.model), ...stored };
  const change = useCallback(
    (changed: Partial<ConversationSettings>) => {
      if (id === null) return setFirst((before) => ({ ...before, ...changed }));
      const key = conversationKeys.one(id);
      const before = pendingOf.current?.id === id ? pendingOf.current : queries.getQueryData<Conversation>(key);
      const next = { id, settings: { ...(before?.settings ?? {}), ...changed } };
      const show = () =>
        queries.setQueryData<Conversation>(key, (shown) => shown && { ...shown, settings: next.settings });
      const finish = () => {
        if (pendingOf.current !== next) return;
        pendingOf.current = null;
        setPending(null);
      };
      pendingOf.current = next;
      setPending(next);
      show();
      setError(null);
      updateConversation(client, id, { settings: next.settings })
        .then(() => queries.cancelQueries({ queryKey: key, exact: true }))
        .then(show)
        .catch((problem: unknown) => {
          setError(problem);
          void queries.invalidateQueries({ queryKey: key });
        })
        .finally(finish);
    },
    [client, queries, id],
  );
  return { settings, change, error };
}

function withModel(model: string | null | undefined): ConversationSettings {
  return model ? { model } : {};
}
