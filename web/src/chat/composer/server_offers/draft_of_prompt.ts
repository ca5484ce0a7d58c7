/** What of a prompt goes into the message that is being written: text, files, and what its user is told. */
import type { PromptMessage } from "./offers";
import { fileOf, fileOfMedia } from "./resource_file";

export interface PromptDraft {
  text: string;
  files: File[];
  /** What is not as the prompt has it; null: the draft says all of it. */
  note: string | null;
}

/**
 * Returns the draft of a prompt's messages. Texts of the user follow each other with a blank line between. Where messages
 * of the assistant are among them, each text says whose it is, because the draft is one message of the user. Resources,
 * images and sounds become files; links to resources are told in the note. Throws UnreadableFileError as `fileOf`.
 */
export function draftOfPrompt(messages: readonly PromptMessage[]): PromptDraft {
  const answers = messages.filter(({ role }) => role === "assistant").length;
  const texts: string[] = [];
  const files: File[] = [];
  const links: string[] = [];
  for (const { role, content } of messages) {
    if (content.type === "text") texts.push(answers === 0 ? content.text : `${SPEAKERS[role]}: ${content.text}`);
    else if (content.type === "resource") files.push(fileOf(content.resource));
    else if (content.type === "resource_link") links.push(content.uri);
    else files.push(fileOfMedia(content.data, content.mimeType, `${content.type} ${files.length + 1} of the prompt`));
  }
  const notes = [noteOfMessages(messages.length, texts.length, answers), noteOfLinks(links)].filter(
    (each) => each !== null,
  );
  return { text: texts.join("\n\n"), files, note: notes.length === 0 ? null : notes.join(" ") };
}

const SPEAKERS = { user: "User", assistant: "Assistant" };

function noteOfMessages(messages: number, texts: number, answers: number): string | null {
  if (messages === 0) return "The prompt has no messages.";
  if (answers > 0) {
    const some = answers === 1 ? "one of them is an answer" : `${answers} of them are answers`;
    const all =
      messages === 1 ? "The message of the prompt is an answer" : `The prompt has ${messages} messages; ${some}`;
    return `${all} of the assistant. The draft is one message, and says whose each text is.`;
  }
  return texts > 1 ? `The prompt has ${texts} texts of the user. The draft has them as one message.` : null;
}

function noteOfLinks(links: readonly string[]): string | null {
  if (links.length === 0) return null;
  return `The prompt names resources that are not attached: ${links.join(", ")}.`;
}

/** Returns a text behind what is written already. */
export function appended(written: string, text: string): string {
  if (text === "") return written;
  return written.trim() === "" ? text : `${written.trimEnd()}\n\n${text}`;
}
