/** The model that was chosen, or had a message, last: for conversations to come, kept in this browser. */

const LAST_MODEL = "roundhouse.model";

/** Returns its name; undefined: there is none, or this browser keeps nothing. */
export function readLastModel(): string | undefined {
  try {
    return localStorage.getItem(LAST_MODEL) ?? undefined;
  } catch {
    return undefined;
  }
}

export function storeLastModel(model: string): void {
  try {
    localStorage.setItem(LAST_MODEL, model);
  } catch {
    // Without storage the first model is chosen for the next conversation.
  }
}
