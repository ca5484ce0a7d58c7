/** What the page knows of the models: `GET /v1/models` (any key), and with the scope `admin` `GET /v1/admin/models`. */
import { queryOptions } from "@tanstack/react-query";
import type { ApiClient } from "../api/client";
import type { components } from "../api/openapi";

export type ModelState = components["schemas"]["ModelState"];
/** A model as `GET /v1/models` lists it. */
export type ListedModel = components["schemas"]["ModelObject"];

const CHAT = "/v1/responses";

type ModelList = components["schemas"]["ModelList"];

/** The list as the gateway gives it; the queries below show parts of it. */
export function modelListQuery(client: ApiClient) {
  return { queryKey: ["models"], queryFn: () => client.request<ModelList>("/v1/models"), refetchInterval: 5000 };
}

export function modelsQuery(client: ApiClient) {
  return queryOptions({ ...modelListQuery(client), select: ({ data }) => data });
}

/** The name of the model that a conversation begins with, where its user has used none yet; null: none is declared so. */
export function defaultModelQuery(client: ApiClient) {
  return queryOptions({ ...modelListQuery(client), select: ({ default_model: name }) => name ?? null });
}

/** Returns the models that can answer in a conversation. */
export function chatModels(models: readonly ListedModel[]): ListedModel[] {
  return models.filter((model) => model.apis.includes(CHAT));
}
