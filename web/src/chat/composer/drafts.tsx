/**
 * Messages that are not sent yet, by conversation: each with its text and its files together. A reload of the tab loses
 * neither: the text is kept in the tab's storage, and the files in the page's database.
 */
import { createContext, type ReactNode, use, useEffect, useMemo, useState, useSyncExternalStore } from "react";
import { randomId } from "../../api/items";
import { openDatabase } from "../stores/browser_database";
import type { Attachment } from "./attachment";
import { type PdfForm, readAttachment } from "./read_attachment";

export interface Draft {
  text: string;
  files: readonly Attachment[];
  /** Number of files that are being read. */
  reading: number;
  /** Why files could not be attached. */
  problems: readonly string[];
}

const EMPTY: Draft = { text: "", files: [], reading: 0, problems: [] };

/** Files of a draft that nobody has touched for so many milliseconds are deleted: their tab is closed. */
const MOST_AGE_MS = 7 * 86_400_000;

/** The id of a conversation; null: the one that its first message begins. */
type ConversationId = string | null;

export class Drafts {
  readonly #drafts = new Map<ConversationId, Draft>();
  readonly #listeners = new Set<() => void>();
  readonly #restored = new Set<ConversationId>();
  /** Keys of files that are this tab's alone. */
  readonly #ownKeys = new Set<string>();
  readonly #isLeftHere: boolean;
  #lastWrite: Promise<void> = Promise.resolve();

  constructor() {
    // A tab that was duplicated has the same keys as the first one, which is still shown: it left no mark.
    this.#isLeftHere = readKept(LEFT) !== null;
    keep(LEFT, null);
    addEventListener("pagehide", () => keep(LEFT, "yes"));
    addEventListener("pageshow", ({ persisted }) => persisted && keep(LEFT, null));
  }

  subscribe = (listener: () => void): (() => void) => {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  };

  /** Returns the draft of a conversation; before `restore` without files from before a reload. */
  find(id: ConversationId): Draft {
    const known = this.#drafts.get(id);
    if (known !== undefined) return known;
    const draft = { ...EMPTY, text: readKept(textKey(id)) ?? "" };
    this.#drafts.set(id, draft);
    return draft;
  }

  /** Adds the files that the draft had before a reload, once. Returns when they are there; it counts as reading. */
  async restore(id: ConversationId): Promise<void> {
    if (this.#restored.has(id)) return;
    this.#restored.add(id);
    const key = readKept(filesKey(id));
    if (key === null) return;
    if (this.#isLeftHere) this.#ownKeys.add(key);
    this.#count(id, 1);
    try {
      const kept = await loadFiles(key);
      const { files } = this.find(id);
      if (files.length === 0) this.#change(id, { files: kept });
      else this.#setFiles(id, [...kept, ...files]);
    } catch {
      // They stay where they are: the next visit reads them again, and what is added meanwhile is kept apart.
      this.#ownKeys.delete(key);
      this.#restored.delete(id);
    } finally {
      this.#count(id, -1);
    }
  }

  setText(id: ConversationId, text: string): void {
    this.#change(id, { text });
    keep(textKey(id), text === "" ? null : text);
  }

  /** Reads files and attaches them. What cannot be attached is among the draft's problems. */
  async add(id: ConversationId, files: Iterable<File>): Promise<void> {
    this.#change(id, { problems: [] });
    for (const file of files) {
      await this.#reading(id, async () => {
        const attachment = await readAttachment(file);
        this.#setFiles(id, [...this.find(id).files, attachment]);
      });
    }
  }

  remove(id: ConversationId, fileId: string): void {
    this.#setFiles(
      id,
      this.find(id).files.filter((each) => each.id !== fileId),
    );
  }

  /** Reads a PDF anew, as text or as pages. */
  async convert(id: ConversationId, { id: fileId, pdf }: Attachment, form: PdfForm): Promise<void> {
    if (pdf === null) return;
    await this.#reading(id, async () => {
      const anew = { ...(await readAttachment(pdf, form)), id: fileId };
      this.#setFiles(
        id,
        this.find(id).files.map((each) => (each.id === fileId ? anew : each)),
      );
    });
  }

  /** Empties a draft: it was sent, or its conversation is deleted. */
  clear(id: ConversationId): void {
    this.setText(id, "");
    this.#change(id, { problems: [] });
    this.#setFiles(id, []);
  }

  /** Empties all drafts, and deletes what any tab of this browser has kept of files: the user signs out. */
  async clearAll(): Promise<void> {
    for (const id of this.#drafts.keys()) this.#change(id, EMPTY);
    this.#restored.clear();
    forgetKept();
    await this.#write(() => deleteBefore(Number.POSITIVE_INFINITY));
  }

  /** Deletes files of drafts that nobody has touched for long. `now`: milliseconds of Unix time. */
  async deleteOld(now: number): Promise<void> {
    await this.#write(() => deleteBefore(now - MOST_AGE_MS));
  }

  /** Returns when what was changed is kept. */
  settled(): Promise<void> {
    return this.#lastWrite;
  }

  async #reading(id: ConversationId, read: () => Promise<void>): Promise<void> {
    this.#count(id, 1);
    try {
      await read();
    } catch (error) {
      const problem = error instanceof Error ? error.message : String(error);
      this.#change(id, { problems: [...this.find(id).problems, problem] });
    } finally {
      this.#count(id, -1);
    }
  }

  #count(id: ConversationId, added: 1 | -1): void {
    this.#change(id, { reading: this.find(id).reading + added });
  }

  #setFiles(id: ConversationId, files: readonly Attachment[]): void {
    this.#change(id, { files });
    const known = readKept(filesKey(id));
    const isOwn = known !== null && this.#ownKeys.has(known);
    if (files.length === 0 && !isOwn) {
      keep(filesKey(id), null);
      return;
    }
    const key = isOwn ? known : randomId();
    this.#ownKeys.add(key);
    keep(filesKey(id), files.length === 0 ? null : key);
    void this.#write(() => storeFiles(key, files, Date.now()));
  }

  /** Writes one after the other: the last one decides. A browser that keeps nothing has the files as long as the page. */
  #write(write: () => Promise<void>): Promise<void> {
    this.#lastWrite = this.#lastWrite.then(write).catch(() => {});
    return this.#lastWrite;
  }

  #change(id: ConversationId, changed: Partial<Draft>): void {
    this.#drafts.set(id, { ...this.find(id), ...changed });
    for (const listener of this.#listeners) listener();
  }
}

/** What the tab keeps of drafts begins with it. */
const PREFIX = "roundhouse.draft";

/** Under which a page that is left says so: the tab's next page goes on with its files. */
const LEFT = "roundhouse.left";

function textKey(id: ConversationId): string {
  return `${PREFIX}.${id ?? "new"}`;
}

/** Under which the tab keeps the key of the draft's files in the database. */
function filesKey(id: ConversationId): string {
  return `${PREFIX}-files.${id ?? "new"}`;
}

function readKept(key: string): string | null {
  try {
    return sessionStorage.getItem(key);
  } catch {
    return null;
  }
}

function keep(key: string, value: string | null): void {
  try {
    if (value === null) sessionStorage.removeItem(key);
    else sessionStorage.setItem(key, value);
  } catch {
    // Without storage, or for a text beyond its bounds, the draft lasts as long as the page.
  }
}

/** Removes all that the tab keeps of drafts. */
function forgetKept(): void {
  try {
    for (const key of Object.keys(sessionStorage)) if (key.startsWith(PREFIX)) sessionStorage.removeItem(key);
  } catch {
    // Without storage nothing was kept.
  }
}

async function loadFiles(key: string): Promise<readonly Attachment[]> {
  const database = await openDatabase();
  try {
    return (await database.get("drafts", key))?.files ?? [];
  } finally {
    database.close();
  }
}

/** Keeps the files of a draft; none: deletes what was kept. `now`: milliseconds of Unix time. */
async function storeFiles(key: string, files: readonly Attachment[], now: number): Promise<void> {
  const database = await openDatabase();
  try {
    if (files.length === 0) await database.delete("drafts", key);
    else await database.put("drafts", { key, at: now, files });
  } finally {
    database.close();
  }
}

/** Deletes the files that were stored at `at` or before: milliseconds of Unix time. */
async function deleteBefore(at: number): Promise<void> {
  const database = await openDatabase();
  try {
    const { store, done } = database.transaction("drafts", "readwrite");
    for (const old of await store.index("at").getAllKeys(IDBKeyRange.upperBound(at))) await store.delete(old);
    await done;
  } finally {
    database.close();
  }
}

const DraftsContext = createContext<Drafts | null>(null);

export function DraftsProvider({ children }: { children: ReactNode }) {
  const [drafts] = useState(() => new Drafts());
  useEffect(() => void drafts.deleteOld(Date.now()), [drafts]);
  return <DraftsContext value={drafts}>{children}</DraftsContext>;
}

export function useDrafts(): Drafts {
  const drafts = use(DraftsContext);
  if (drafts === null) throw new Error("useDrafts is used outside of DraftsProvider");
  return drafts;
}

/** What is attached to the message that is being written. */
export interface Attachments {
  list: readonly Attachment[];
  reading: number;
  problems: readonly string[];
  add: (files: Iterable<File>) => Promise<void>;
  remove: (id: string) => void;
  convert: (attachment: Attachment, form: PdfForm) => Promise<void>;
}

/** Returns the draft of a conversation, and what changes it; renders again when it changes. */
export function useDraft(id: ConversationId) {
  const drafts = useDrafts();
  const { text, files, reading, problems } = useSyncExternalStore(drafts.subscribe, () => drafts.find(id));
  useEffect(() => void drafts.restore(id), [drafts, id]);
  const actions = useMemo(
    () => ({
      setText: (changed: string) => drafts.setText(id, changed),
      clear: () => drafts.clear(id),
      add: (added: Iterable<File>) => drafts.add(id, added),
      remove: (fileId: string) => drafts.remove(id, fileId),
      convert: (attachment: Attachment, form: PdfForm) => drafts.convert(id, attachment, form),
    }),
    [drafts, id],
  );
  const { setText, clear, ...changes } = actions;
  const attachments: Attachments = { list: files, reading, problems, ...changes };
  return { text, setText, clear, attachments };
}
