/** A link from a model to a new conversation with it. */
import { useQuery } from "@tanstack/react-query";
import { useClient } from "../api/access";
import { storeLastModel } from "../chat/last_model";
import { routeHash } from "../router";
import { chatModels, modelsQuery } from "./models";

/** Shows nothing for a model that cannot answer in a conversation. */
export function ChatLink({ name }: { name: string }) {
  const client = useClient();
  const models = chatModels(useQuery(modelsQuery(client)).data ?? []);
  if (!models.some(({ id }) => id === name)) return null;
  return (
    <a
      href={routeHash("chat")}
      aria-label={`Chat with ${name}`}
      onClick={() => storeLastModel(name)}
      className="inline-flex min-h-9 items-center rounded-md border border-line bg-raised px-3 py-1 text-sm hover:bg-panel"
    >
      Chat
    </a>
  );
}
