/** Files of conversations, in our own format and in those of other programs. Pure. A new format is one entry of FORMATS. */
import { isRecord } from "../../api/errors";
import { readLlamaCpp, writeLlamaCpp } from "./llama_cpp";
import { readOpenWebUi, writeOpenWebUi } from "./open_webui";
import { readOpenAi, writeOpenAi } from "./openai";
import { ImportProblem, type Portable } from "./portable";
import { readRoundhouse, writeRoundhouse } from "./roundhouse";

export interface Format {
  /** Name for people. */
  label: string;
  /** Returns the conversations of a file's JSON; null: it is of another format. Throws ImportProblem if it is damaged. */
  read: (json: unknown) => Portable[] | null;
  write: (conversations: readonly Portable[]) => unknown;
}

export const FORMATS = {
  roundhouse: { label: "Roundhouse", read: readRoundhouse, write: writeRoundhouse },
  openai: { label: "OpenAI", read: readOpenAi, write: writeOpenAi },
  llama_cpp: { label: "llama.cpp", read: readLlamaCpp, write: writeLlamaCpp },
  open_webui: { label: "Open WebUI", read: readOpenWebUi, write: writeOpenWebUi },
} satisfies Record<string, Format>;

export type FormatName = keyof typeof FORMATS;

/** Returns the conversations of a file, whose format is found by its content. Throws ImportProblem. */
export function readConversations(text: string): Portable[] {
  let json: unknown;
  try {
    json = JSON.parse(text);
  } catch (error) {
    throw new ImportProblem(`The file is not JSON: ${error instanceof Error ? error.message : String(error)}`);
  }
  for (const format of Object.values(FORMATS)) {
    const found = format.read(json);
    if (found !== null) return found;
  }
  const seen = isRecord(json)
    ? `an object with ${Object.keys(json).slice(0, 5).join(", ") || "no fields"}`
    : typeof json;
  const known = Object.values(FORMATS).map((format) => format.label);
  throw new ImportProblem(
    `The file is no export of ${known.join(", ")}: it holds ${Array.isArray(json) ? "a list" : seen}.`,
  );
}
