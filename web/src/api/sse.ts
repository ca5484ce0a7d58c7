/** Server-sent events, as the gateway writes them, read from pieces of any size. */

export interface ServerEvent {
  /** Value of `event:`; empty if there was none. */
  event: string;
  /** Value of `data:`; lines are joined by a newline. Empty for a comment. */
  data: string;
  /** Text of a comment (`: ...`); null for an event. */
  comment: string | null;
}

/** Reads events from pieces of bytes, which may end within a character. */
export class EventParser {
  readonly #decoder = new TextDecoder();
  #rest = "";

  /** Returns the events that are complete with this piece. */
  push(bytes: Uint8Array): ServerEvent[] {
    this.#rest += this.#decoder.decode(bytes, { stream: true });
    const events: ServerEvent[] = [];
    for (;;) {
      const end = /\r?\n\r?\n/.exec(this.#rest);
      if (end === null) return events;
      const block = this.#rest.slice(0, end.index);
      this.#rest = this.#rest.slice(end.index + end[0].length);
      const event = readBlock(block);
      if (event !== null) events.push(event);
    }
  }
}

function readBlock(block: string): ServerEvent | null {
  let event = "";
  const data: string[] = [];
  const comments: string[] = [];
  for (const line of block.split(/\r?\n/)) {
    const colon = line.indexOf(":");
    const name = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (name === "" && colon === 0) comments.push(value);
    else if (name === "event") event = value;
    else if (name === "data") data.push(value);
  }
  if (data.length > 0) return { event, data: data.join("\n"), comment: null };
  return comments.length > 0 ? { event: "", data: "", comment: comments.join("\n") } : null;
}
