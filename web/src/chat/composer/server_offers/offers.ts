/** The prompts and resources that MCP servers offer to the caller, and how one is asked for. */
import { queryOptions } from "@tanstack/react-query";
import type { ApiClient } from "../../../api/client";
import type { components } from "../../../api/openapi";

type Schemas = components["schemas"];
export type ListedServer = Schemas["ListedServer"];
export type ListedPrompt = Schemas["ListedPrompt"];
export type ListedResource = Schemas["ListedResource"];
export type PromptMessage = Schemas["PromptMessage"];
export type ResourceContents = Schemas["TextContents"] | Schemas["BlobContents"];

/** A server that offers something beside tools. */
export interface ServerOffers {
  server: string;
  isConnected: boolean;
  prompts: ListedPrompt[];
  resources: ListedResource[];
}

/** The servers of which the caller may use prompts or resources. */
export function offersQuery(client: ApiClient) {
  return queryOptions({
    queryKey: ["tools", "offers"],
    queryFn: async () => offersOf(await client.request<ListedServer[]>("/tools/servers")),
    staleTime: 10_000,
    retry: false,
  });
}

/** Returns what servers offer beside tools; those without such offers are left out. */
export function offersOf(servers: readonly ListedServer[]): ServerOffers[] {
  return servers
    .filter(({ prompts, resources }) => prompts.length > 0 || resources.length > 0)
    .map(({ server, state, prompts, resources }) => ({
      server,
      isConnected: state === "connected",
      prompts,
      resources,
    }));
}

/** Returns the offers that have all words of a search in their name, their description or the name of their server. */
export function searchOffers(offers: readonly ServerOffers[], search: string): ServerOffers[] {
  const words = search.toLowerCase().split(/\s+/);
  const has = (...texts: string[]) => {
    const text = texts.join("\n").toLowerCase();
    return words.every((word) => text.includes(word));
  };
  return offers
    .map((each) => ({
      ...each,
      prompts: each.prompts.filter(({ name, description }) => has(each.server, name, description)),
      resources: each.resources.filter(({ uri, name, description }) => has(each.server, uri, name, description)),
    }))
    .filter(({ prompts, resources }) => prompts.length > 0 || resources.length > 0);
}

/** Returns the messages of a prompt. Arguments that are empty and not required are left out. Throws as `request`. */
export async function getPrompt(
  client: ApiClient,
  server: string,
  prompt: ListedPrompt,
  values: Readonly<Record<string, string>>,
  signal: AbortSignal,
): Promise<PromptMessage[]> {
  const given = prompt.arguments
    .map(({ name, required }) => ({ name, required, value: values[name] ?? "" }))
    .filter(({ required, value }) => required || value !== "");
  const path = `/tools/servers/${encodeURIComponent(server)}/prompts/${encodeURIComponent(prompt.name)}`;
  const body = { arguments: Object.fromEntries(given.map(({ name, value }) => [name, value])) };
  return (await client.request<Schemas["PromptAnswer"]>(path, { body, signal })).messages;
}

/** Returns the contents of a resource. Throws as `request`. */
export async function readResource(
  client: ApiClient,
  server: string,
  uri: string,
  signal: AbortSignal,
): Promise<ResourceContents[]> {
  const path = `/tools/servers/${encodeURIComponent(server)}/resources/read`;
  return (await client.request<Schemas["ResourceAnswer"]>(path, { body: { uri }, signal })).contents;
}
