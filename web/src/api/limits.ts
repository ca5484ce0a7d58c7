/** What the gateway takes and keeps (`GET /v1/limits`). */
import { queryOptions } from "@tanstack/react-query";
import type { ApiClient } from "./client";
import type { components } from "./openapi";

export type Limits = components["schemas"]["Limits"];

/** The limits, which do not change while the gateway runs. */
export function limitsQuery(client: ApiClient) {
  return queryOptions({
    queryKey: ["limits"],
    queryFn: () => client.request<Limits>("/v1/limits"),
    staleTime: 600_000,
  });
}
