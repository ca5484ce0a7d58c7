/** First messages for a conversation that is empty, made of what is there: documents, tools, models. */
import { useQuery } from "@tanstack/react-query";
import { useClient } from "../../api/access";
import type { ListedModel } from "../../models/models";
import { routeHash } from "../../router";
import type { ConversationSettings } from "../conversations";
import { ALL_DOCUMENTS, type ToolSource, toolSourcesQuery } from "./sources";

export interface Starter {
  title: string;
  text: string;
  /** Settings of the conversation that the message needs. */
  settings: Partial<ConversationSettings>;
}

/** What a starter can be made of. */
export interface Offered {
  /** Names of documents that searches find, the newest first. */
  documents: readonly string[];
  sources: readonly ToolSource[];
  models: readonly ListedModel[];
  chosen: ListedModel;
}

const SHOWN = 3;

/** What can be asked of the built-in tools, by the tool's name. */
const OF_TOOLS: Readonly<Record<string, string>> = {
  calculate: "What is 17.5 % of 2,340, plus 19? Calculate it with the tool.",
  current_time: "What day and time is it now? Ask the tool.",
};

/** Returns three starters: of documents, of tools and of the model where there are some, and else others for the model. */
export function startersOf({ documents, sources, models, chosen }: Offered): Starter[] {
  const found: Starter[] = [];
  const [document] = documents;
  if (document !== undefined)
    found.push({
      title: `Ask about ${document}`,
      text: `What does ${document} say? Give the main points, with their sources.`,
      settings: { collections: [ALL_DOCUMENTS] },
    });
  const source = sources.find(({ isConnected }) => isConnected);
  if (source !== undefined && chosen.capabilities.tools)
    found.push({ title: `Use ${source.title}`, text: questionOf(source), settings: { toolServers: [source.label] } });
  found.push({ title: `Meet ${chosen.id}`, text: "What can you do well, and what can you not do?", settings: {} });
  const other = models.find(({ id, state }) => state === "loaded" && id !== chosen.id);
  if (other !== undefined)
    found.push({
      title: `Try ${other.id}`,
      text: "What can you do well, and what can you not do?",
      settings: { model: other.id },
    });
  if (chosen.modalities.includes("image"))
    found.push({ title: "Show a picture", text: "Describe the attached picture in detail.", settings: {} });
  found.push(
    { title: "Have it explained", text: "Explain how a railway roundhouse works, in three paragraphs.", settings: {} },
    { title: "Have it written", text: "Write a Python function that finds the longest word of a text.", settings: {} },
  );
  return found.slice(0, SHOWN);
}

function questionOf({ title, tools }: ToolSource): string {
  const known = tools.find((name) => OF_TOOLS[name] !== undefined);
  return OF_TOOLS[known ?? ""] ?? `What can you do with the tools of ${title}? Show it with one of them.`;
}

interface StartersProps {
  models: readonly ListedModel[];
  chosen: ListedModel | null;
  onChoose: (starter: Starter) => void;
}

export function Starters({ models, chosen, onChoose }: StartersProps) {
  const client = useClient();
  const sources = useQuery(toolSourcesQuery(client));
  // Without retrieval there are none.
  const documents = useQuery({
    queryKey: ["documents", "starters"],
    queryFn: () =>
      client.request<{ data: { filename: string | null; searchable: boolean }[] }>("/v1/documents", {
        query: { limit: 20 },
      }),
    retry: false,
  });
  if (chosen === null)
    return (
      <a href={routeHash("models")} className="self-center text-sm underline">
        No model can chat yet. Get one under Models.
      </a>
    );
  // All at once: what is under a finger does not change.
  if (sources.isPending || documents.isPending) return null;
  const names = (documents.data?.data ?? []).flatMap(({ filename, searchable }) =>
    searchable && filename !== null ? [filename] : [],
  );
  return (
    <ul aria-label="Starters" className="grid gap-2 sm:grid-cols-3">
      {startersOf({ documents: names, sources: sources.data ?? [], models, chosen }).map((starter) => (
        <li key={starter.title} className="flex min-w-0">
          <button
            type="button"
            onClick={() => onChoose(starter)}
            className="min-w-0 flex-1 rounded-lg border border-line bg-raised px-3 py-2 text-left text-sm hover:bg-panel"
          >
            <span className="block truncate font-semibold">{starter.title}</span>
            <span className="line-clamp-2 text-xs text-faint">{starter.text}</span>
          </button>
        </li>
      ))}
    </ul>
  );
}
