/** What the page knows of the models: `GET /v1/models` (any key), and with the scope `admin` `GET /v1/admin/models`. */
import { queryOptions } from "@tanstack/react-query";
import type { ApiClient } from "../api/client";

export type ModelState = "unloaded" | "loading" | "loaded" | "unloading" | "failed";

export interface ListedModel {
  id: string;
  type: string;
  state: ModelState;
  backend: string;
  apis: string[];
  aliases: string[];
  modalities: string[];
  context_length: number | null;
  capabilities: { modalities: string[]; tools: boolean; thinking_modes: string[]; [capability: string]: unknown };
  status: { value: string; failed?: boolean; progress?: number | null };
}

const CHAT = "/v1/responses";

export function modelsQuery(client: ApiClient) {
  return queryOptions({
    queryKey: ["models"],
    queryFn: async () => (await client.request<{ data: ListedModel[] }>("/v1/models")).data,
    refetchInterval: 5000,
  });
}

/** Returns the models that can answer in a conversation. */
export function chatModels(models: readonly ListedModel[]): ListedModel[] {
  return models.filter((model) => model.apis.includes(CHAT));
}
