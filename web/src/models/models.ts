/** What the page knows of the models: `GET /v1/models` (any key), and with the scope `admin` `GET /v1/admin/models`. */
import { queryOptions } from "@tanstack/react-query";
import type { ApiClient } from "../api/client";
import type { components } from "../api/openapi";

export type ModelState = components["schemas"]["ModelState"];
/** A model as `GET /v1/models` lists it. */
export type ListedModel = components["schemas"]["ModelObject"];

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
