/** Copies of the gateway's answers in this browser, shown while the gateway cannot be reached. */
import { NetworkError } from "../../api/errors";
import { openDatabase } from "./browser_database";

/** Conversations and lists that are copied; those read longest ago go first. */
const MOST_COPIES = 400;

export class Copies {
  readonly #onStale: (isStale: boolean) => void;
  readonly #open: typeof openDatabase;

  /** `onStale` is told after each reading whether it came from a copy. */
  constructor(onStale: (isStale: boolean) => void = announceStale, open: typeof openDatabase = openDatabase) {
    this.#onStale = onStale;
    this.#open = open;
  }

  /** Returns what `load` does, and copies it; the copy if `load` throws NetworkError and there is one. */
  async readThrough<T>(key: string, load: () => Promise<T>): Promise<T> {
    let loaded: T;
    try {
      loaded = await load();
    } catch (error) {
      if (!(error instanceof NetworkError)) throw error;
      const copy = await this.#read(key);
      if (copy === undefined) throw error;
      this.#onStale(true);
      return copy as T;
    }
    this.#onStale(false);
    void this.#write(key, loaded);
    return loaded;
  }

  /** Deletes the copies of a conversation. */
  async forget(id: string): Promise<void> {
    await this.#use(async (database) => {
      await Promise.all([database.delete("copies", `conversation ${id}`), database.delete("copies", `items ${id}`)]);
    });
  }

  async #read(key: string): Promise<unknown> {
    return this.#use(async (database) => (await database.get("copies", key))?.data);
  }

  async #write(key: string, data: unknown): Promise<void> {
    await this.#use(async (database) => {
      await database.put("copies", { key, at: Date.now(), data });
      const surplus = (await database.count("copies")) - MOST_COPIES;
      if (surplus <= 0) return;
      const transaction = database.transaction("copies", "readwrite");
      let cursor = await transaction.store.index("at").openCursor();
      for (let gone = 0; cursor !== null && gone < surplus; gone += 1) {
        await cursor.delete();
        cursor = await cursor.continue();
      }
      await transaction.done;
    });
  }

  /** A browser that keeps nothing has no copies: that is no failure of what the user does. */
  async #use<T>(work: (database: Awaited<ReturnType<typeof openDatabase>>) => Promise<T>): Promise<T | undefined> {
    try {
      const database = await this.#open();
      try {
        return await work(database);
      } finally {
        database.close();
      }
    } catch {
      return undefined;
    }
  }
}

export const STALE_EVENT = "roundhouse-stale";

function announceStale(isStale: boolean): void {
  dispatchEvent(new CustomEvent(STALE_EVENT, { detail: isStale }));
}
