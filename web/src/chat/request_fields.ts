/** Fields of `POST /v1/responses` for the next answer of a conversation. Pure. */
import type { Conversation, ConversationSettings } from "./conversations";

/**
 * Returns the fields; the conversation's items up to `parentId` are the input (null: none). `model` undefined: the one of
 * the conversation's settings.
 */
export function requestFields(
  conversation: Conversation,
  parentId: string | null,
  model?: string,
): Record<string, unknown> {
  const settings = conversation.settings ?? {};
  const { reasoning_effort: effort, ...sampling } = settings.parameters ?? {};
  const tools = toolsOf(settings);
  return {
    model: model || settings.model || conversation.model,
    conversation: { id: conversation.id, parent_id: parentId },
    input: [],
    ...(settings.instructions ? { instructions: settings.instructions } : {}),
    ...sampling,
    ...(effort === undefined ? {} : { reasoning: { effort } }),
    ...(tools.length > 0 ? { tools } : {}),
    ...(settings.collections?.length ? { include: ["file_search_call.results"] } : {}),
  };
}

function toolsOf({ toolServers = [], approvedTools, collections = [] }: ConversationSettings): object[] {
  const search = collections.length === 0 ? [] : [{ type: "file_search", vector_store_ids: collections }];
  return [...toolServers.map((label) => serverTool(label, approvedTools)), ...search];
}

function serverTool(label: string, approved: readonly string[] = []): Record<string, unknown> {
  const prefix = `${label}/`;
  const never = approved.filter((each) => each.startsWith(prefix)).map((each) => each.slice(prefix.length));
  return {
    type: "mcp",
    server_label: label,
    require_approval: never.length === 0 ? "always" : { never: { tool_names: never } },
  };
}
