/** Fields of `POST /v1/responses` for the next answer of a conversation. Pure. */
import type { Conversation } from "./conversations";

/** Returns the fields; the conversation's items are the input. `model` undefined: the one of the conversation's settings. */
export function requestFields(conversation: Conversation, model?: string): Record<string, unknown> {
  const settings = conversation.settings ?? {};
  const { reasoning_effort: effort, ...sampling } = settings.parameters ?? {};
  return {
    model: model || settings.model || conversation.model,
    conversation: conversation.id,
    input: [],
    ...(settings.instructions ? { instructions: settings.instructions } : {}),
    ...sampling,
    ...(effort === undefined ? {} : { reasoning: { effort } }),
    ...(settings.toolServers?.length
      ? { tools: settings.toolServers.map((label) => toolOf(label, settings.approvedTools)) }
      : {}),
  };
}

function toolOf(label: string, approved: readonly string[] = []): Record<string, unknown> {
  const prefix = `${label}/`;
  const never = approved.filter((each) => each.startsWith(prefix)).map((each) => each.slice(prefix.length));
  return {
    type: "mcp",
    server_label: label,
    require_approval: never.length === 0 ? "always" : { never: { tool_names: never } },
  };
}
