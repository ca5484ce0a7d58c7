/** The settings of the conversation that is written in: stored with it, or kept until its first message is sent. */
import { useQueryClient } from "@tanstack/react-query";
import { useCallback, useState } from "react";
import { useClient } from "../../api/access";
import { type Conversation, type ConversationSettings, conversationKeys, updateConversation } from "../conversations";
import { readLastModel, storeLastModel } from "../last_model";

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
  const stored = conversation?.settings ?? {};
  const settings = conversation === null ? first : { ...withModel(conversation.model), ...stored };
  const id = conversation?.id ?? null;
  const change = useCallback(
    (changed: Partial<ConversationSettings>) => {
      if (changed.model !== undefined) storeLastModel(changed.model);
      if (id === null) return setFirst((before) => ({ ...before, ...changed }));
      const key = conversationKeys.one(id);
      const before = queries.getQueryData<Conversation>(key);
      const next = { ...(before?.settings ?? {}), ...changed };
      queries.setQueryData<Conversation>(key, (shown) => shown && { ...shown, settings: next });
      setError(null);
      updateConversation(client, id, { settings: next }).catch((problem: unknown) => {
        setError(problem);
        void queries.invalidateQueries({ queryKey: key });
      });
    },
    [client, queries, id],
  );
  return { settings, change, error };
}

function withModel(model: string | null | undefined): ConversationSettings {
  return model ? { model } : {};
}
