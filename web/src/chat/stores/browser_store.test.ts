import "fake-indexeddb/auto";
import { expect, it } from "vitest";
import { ApiError, NetworkError } from "../../api/errors";
import { textItem } from "../transfer/portable";
import { browserStore, isInBrowser } from "./browser_store";
import { Copies } from "./copies";

it("keeps a tree of items, and shows the branch that was added last", async () => {
  const store = browserStore(() => 1000);
  const made = await store.create({
    title: "Mine",
    settings: { model: "m" },
    items: [textItem("u1", null, "user", "Hello")],
  });
  expect(isInBrowser(made.id)).toBe(true);
  await store.addItems(made.id, [{ type: "message", role: "assistant", content: [] }], "u1");
  await store.addItems(made.id, [{ role: "assistant", content: [] }], "u1");
  const items = await store.listItems(made.id);
  expect(items.map((item) => item.parent_id)).toEqual([null, "u1", "u1"]);
  expect((await store.get(made.id)).active_item_id).toBe(items[2]?.id);
  await store.update(made.id, { active_item_id: "u1" });
  expect((await store.get(made.id)).active_item_id).toBe("u1");
});

it("finds conversations by all of their words, and lists the one used last first", async () => {
  let now = 2000;
  const store = browserStore(() => now);
  const cat = await store.create({
    title: "About cats",
    settings: {},
    items: [textItem("c1", null, "user", "They purr loudly")],
  });
  now += 1;
  const dog = await store.create({ title: "About dogs", settings: {} });
  const ids = async (search: string) =>
    (await store.list(search)).map((each) => each.id).filter((id) => id === cat.id || id === dog.id);
  expect(await ids("")).toEqual([dog.id, cat.id]);
  expect(await ids("LOUDLY purr")).toEqual([cat.id]);
  expect(await ids("about")).toEqual([dog.id, cat.id]);
  await store.remove(cat.id);
  expect(await ids("")).toEqual([dog.id]);
  expect(await store.listItems(cat.id)).toEqual([]);
});

it("reads a copy while the gateway cannot be reached, and no other error's", async () => {
  const told: boolean[] = [];
  const copies = new Copies((isStale) => told.push(isStale));
  const away = () => Promise.reject(new NetworkError());
  await expect(copies.readThrough("list", away)).rejects.toThrow(NetworkError);
  expect(await copies.readThrough("list", async () => ["one"])).toEqual(["one"]);
  await expect.poll(() => copies.readThrough("list", away).catch(() => null)).toEqual(["one"]);
  expect(told[0]).toBe(false);
  expect(told.at(-1)).toBe(true);
  const refused = new ApiError({
    message: "no",
    code: "c",
    status: 403,
    nextSteps: [],
    requestId: null,
    retryAfterS: null,
  });
  await expect(copies.readThrough("list", () => Promise.reject(refused))).rejects.toBe(refused);
  await copies.forget("other");
});
