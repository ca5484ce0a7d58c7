/** A link from a model to a new conversation with it. */
import { useQuery } from "@tanstack/react-query";
import { useClient } from "../api/access";
import { storeLastModel } from "../chat/last_model";
import { routeHash } from "../router";
import { Icon } from "../ui/icons";
import { chatModels, modelsQuery } from "./models";

/** Shows nothing for a model that cannot answer in a conversation, or that failed: its reason stands beside. */
export function ChatLink({ name }: { name: string }) {
  const client = useClient();
  const models = chatModels(useQuery(modelsQuery(client)).data ?? []);
  if (!models.some(({ id, state }) => id === name && state !== "failed")) return null;
  return (
    <a
      href={routeHash("chat")}
      aria-label={`Chat with ${name}`}
      onClick={() => storeLastModel(name)}
      className="inline-flex min-h-9 items-center gap-1.5 rounded-md border border-line bg-raised px-3 py-1 text-sm hover:bg-panel"
    >
      <Icon name="chat" />
      Chat
    </a>
  );
}
