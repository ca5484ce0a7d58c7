// `node file_search_probe.mjs URL PACKAGES`: OpenAI's SDK for Node on files and vector stores, as its users write it.
// PACKAGES: the folder `node_modules`. Writes one JSON object: what was tried, to "held" or to what was wrong.
import assert from "node:assert/strict";
import { createReadStream, readFileSync } from "node:fs";
import { fileURLToPath, pathToFileURL } from "node:url";

const [url, packages] = process.argv.slice(2);
const { default: OpenAI, toFile } = await import(pathToFileURL(`${packages}/openai/index.mjs`).href);
const client = new OpenAI({ apiKey: "none", baseURL: `${url}/v1`, maxRetries: 0, timeout: 60_000 });
const NOTES = "# Engines\n\nThe turntable moves the engines.\n\n# Coal\n\nCoal is stored beside the shed.\n";
const poll = { pollIntervalMs: 50 };

const upload = (name, text = NOTES, more = {}) =>
  client.files.create({ file: new File([text], name), purpose: "assistants", ...more });
const idsOf = async (pages) => {
  const ids = [];
  for await (const each of pages) ids.push(each.id);
  return ids;
};
const refused = (status, code) => (error) =>
  assert.deepEqual([error.status, error.code, error instanceof OpenAI.APIError], [status, code, true]) ?? true;

const tries = {
  async "files: upload, retrieve, content, delete"() {
    const file = await upload("Kohle für die Lok.md");
    assert.deepEqual(
      [file.object, file.filename, file.bytes, file.purpose, file.status, file.expires_at ?? null],
      ["file", "Kohle für die Lok.md", NOTES.length, "assistants", "processed", null],
    );
    assert.deepEqual(await client.files.retrieve(file.id), file);
    assert.deepEqual(await client.files.waitForProcessing(file.id, { pollInterval: 10 }), file);
    assert.equal(await (await client.files.content(file.id)).text(), NOTES);
    assert.deepEqual(await client.files.delete(file.id), { id: file.id, object: "file", deleted: true });
    await assert.rejects(client.files.retrieve(file.id), refused(404, "file_not_found"));
  },
  async "files: from a buffer, with an expiry"() {
    const file = await client.files.create({
      file: await toFile(Buffer.from(NOTES), "notes.txt", { type: "text/plain" }),
      purpose: "user_data",
      expires_after: { anchor: "created_at", seconds: 3600 },
    });
    assert.equal(file.expires_at, file.created_at + 3600);
  },
  async "files: streamed from the disk, and found"() {
    const path = fileURLToPath(import.meta.url);
    const store = await client.vectorStores.create({});
    const added = await client.vectorStores.files.uploadAndPoll(store.id, createReadStream(path), poll);
    assert.deepEqual([added.status, added.last_error], ["completed", null]);
    const file = await client.files.retrieve(added.id);
    assert.deepEqual([file.filename, file.bytes], ["file_search_probe.mjs", readFileSync(path).length]);
    const { data } = await client.vectorStores.search(store.id, { query: "streamed from the disk, and found" });
    assert.ok(data.some((hit) => hit.content[0].text.includes("createReadStream(path)")));
  },
  async "files: pages and purposes"() {
    const made = [];
    for (const name of ["1.txt", "2.txt", "3.txt"]) made.push((await upload(name, name, { purpose: "evals" })).id);
    const listed = await idsOf(client.files.list({ limit: 2, order: "asc", purpose: "evals" }));
    assert.deepEqual(listed, made);
    const page = await client.files.list({ limit: 2, purpose: "evals" });
    assert.deepEqual([page.data.map((each) => each.id), page.has_more], [[made[2], made[1]], true]);
  },
  async "vector stores: create with files, change, delete"() {
    const file = await upload("notes.md");
    const store = await client.vectorStores.create({
      name: "yard",
      description: "of the railway",
      file_ids: [file.id],
      metadata: { kind: "test" },
      expires_after: { anchor: "last_active_at", days: 7 },
      chunking_strategy: { type: "static", static: { max_chunk_size_tokens: 100, chunk_overlap_tokens: 0 } },
    });
    assert.equal(store.object, "vector_store");
    assert.equal(store.expires_at, store.last_active_at + 7 * 86_400);
    const added = await client.vectorStores.files.poll(store.id, file.id, poll);
    assert.deepEqual([added.status, added.last_error], ["completed", null]);
    assert.equal(added.chunking_strategy.static.max_chunk_size_tokens, 100);
    const whole = await client.vectorStores.retrieve(store.id);
    assert.deepEqual([whole.status, whole.file_counts.completed, whole.usage_bytes], ["completed", 1, NOTES.length]);
    const changed = await client.vectorStores.update(store.id, { name: "shed", expires_after: null, metadata: null });
    assert.deepEqual([changed.name, changed.expires_after ?? null, changed.metadata], ["shed", null, {}]);
    assert.deepEqual(await client.vectorStores.delete(store.id), {
      id: store.id,
      object: "vector_store.deleted",
      deleted: true,
    });
    await assert.rejects(client.vectorStores.retrieve(store.id), refused(404, "vector_store_not_found"));
    assert.equal((await client.files.retrieve(file.id)).id, file.id);
  },
  async "vector stores: pages, forwards and backwards"() {
    const made = [];
    for (const name of ["1", "2", "3"]) made.push((await client.vectorStores.create({ name })).id);
    const newest = (await idsOf(client.vectorStores.list({ limit: 2 }))).slice(0, 3);
    assert.deepEqual(newest, [...made].reverse());
    const before = await client.vectorStores.list({ before: made[0], limit: 1, order: "desc" });
    assert.deepEqual([before.data.map((each) => each.id), before.has_more], [[made[1]], true]);
  },
  async "files of a vector store: attributes, content, pages, removal"() {
    const store = await client.vectorStores.create({});
    const first = await client.vectorStores.files.uploadAndPoll(store.id, new File([NOTES], "notes.md"), poll);
    const file = await upload("tea.txt", "Tea is in the kitchen.");
    const body = { file_id: file.id, attributes: { year: 1900, lang: "en", checked: true } };
    const second = await client.vectorStores.files.createAndPoll(store.id, body, poll);
    assert.deepEqual([second.status, second.attributes], ["completed", body.attributes]);
    const named = { vector_store_id: store.id };
    const changed = await client.vectorStores.files.update(file.id, { ...named, attributes: { year: 1901 } });
    assert.deepEqual(changed.attributes, { year: 1901 });
    await client.vectorStores.files.poll(store.id, file.id, poll);
    let text = "";
    for await (const part of client.vectorStores.files.content(first.id, named)) text += part.text;
    assert.equal(text, NOTES);
    const both = [first.id, file.id];
    assert.deepEqual(await idsOf(client.vectorStores.files.list(store.id, { limit: 1, order: "asc" })), both);
    const before = await client.vectorStores.files.list(store.id, { before: file.id, order: "asc" });
    assert.deepEqual(before.data.map((each) => each.id), [first.id]);
    assert.deepEqual(await idsOf(client.vectorStores.files.list(store.id, { filter: "failed" })), []);
    assert.equal((await client.vectorStores.files.delete(file.id, named)).deleted, true);
    await assert.rejects(client.vectorStores.files.retrieve(file.id, named), refused(404, "file_not_found"));
  },
  async "batches: upload and poll, a bad file, pages, cancel"() {
    const store = await client.vectorStores.create({});
    const files = ["a.txt", "b.txt", "c.txt"].map((name) => new File([`The file ${name}.`], name));
    const bad = await upload("bad.txt", new Uint8Array([0, 1, 2, 3, 255, 254, 0, 0, 1, 7]));
    const batch = await client.vectorStores.fileBatches.uploadAndPoll(store.id, { files, fileIds: [bad.id] }, poll);
    assert.deepEqual([batch.status, batch.file_counts.completed, batch.file_counts.failed], ["completed", 3, 1]);
    const named = { vector_store_id: store.id };
    const failed = await client.vectorStores.fileBatches.listFiles(batch.id, { ...named, filter: "failed" });
    assert.deepEqual(failed.data.map((each) => [each.id, each.last_error.code]), [[bad.id, "unsupported_file"]]);
    const page = await client.vectorStores.fileBatches.listFiles(batch.id, { ...named, limit: 3, order: "asc" });
    assert.deepEqual([page.data.length, page.has_more], [3, true]);
    const all = await idsOf(client.vectorStores.fileBatches.listFiles(batch.id, { ...named, limit: 3 }));
    assert.deepEqual([all.length, new Set(all).size], [4, 4]);
    assert.equal((await client.vectorStores.fileBatches.cancel(batch.id, named)).file_counts.completed, 3);
  },
  async "batches: files with options of their own"() {
    const store = await client.vectorStores.create({});
    const [one, two] = [await upload("1.md"), await upload("2.md")];
    const chunking_strategy = { type: "static", static: { max_chunk_size_tokens: 200, chunk_overlap_tokens: 50 } };
    const files = [
      { file_id: one.id, attributes: { n: 1 } },
      { file_id: two.id, attributes: { n: 2 }, chunking_strategy },
    ];
    const batch = await client.vectorStores.fileBatches.createAndPoll(store.id, { files }, poll);
    assert.equal(batch.file_counts.completed, 2);
    const second = await client.vectorStores.files.retrieve(two.id, { vector_store_id: store.id });
    assert.deepEqual([second.attributes, second.chunking_strategy], [{ n: 2 }, chunking_strategy]);
  },
  async "search: filters, ranking options, several queries"() {
    const store = await client.vectorStores.create({});
    const [coal, tea] = [await upload("coal.md"), await upload("tea.md", "# Tea\n\nTea is in the kitchen.\n")];
    const files = [
      { file_id: coal.id, attributes: { year: 1900, kind: "yard" } },
      { file_id: tea.id, attributes: { year: 2000, kind: "house" } },
    ];
    await client.vectorStores.fileBatches.createAndPoll(store.id, { files }, poll);
    const search = async (query, more = {}) => (await client.vectorStores.search(store.id, { query, ...more })).data;
    const [best] = await search("Where is the coal stored?", { max_num_results: 1, rewrite_query: true });
    assert.equal(best.file_id, coal.id);
    assert.equal(best.filename, "coal.md");
    assert.equal(best.content[0].type, "text");
    assert.match(best.content[0].text, /Coal is stored beside the shed\./);
    assert.ok(best.score > 0 && best.score <= 1, `a score of ${best.score}`);
    assert.deepEqual(best.attributes, { year: 1900, kind: "yard" });
    const filters = {
      type: "or",
      filters: [
        { type: "eq", key: "kind", value: "house" },
        { type: "and", filters: [{ type: "lt", key: "year", value: 1900 }, { type: "ne", key: "kind", value: "x" }] },
      ],
    };
    const filtered = await search(["coal", "kitchen"], { filters });
    assert.deepEqual([...new Set(filtered.map((hit) => hit.file_id))], [tea.id]);
    const within = await search("coal", { filters: { type: "in", key: "year", value: [1900, 1901] } });
    assert.deepEqual([...new Set(within.map((hit) => hit.file_id))], [coal.id]);
    for (const ranker of ["none", "auto", "default-2024-11-15"]) {
      const hits = await search("coal", { ranking_options: { ranker, score_threshold: 0.01 } });
      assert.ok(hits.length && hits.every((hit) => hit.score >= 0.01));
    }
    const good = await search("coal", { ranking_options: { score_threshold: 0.9 } });
    assert.ok(good.every((hit) => hit.score >= 0.9));
    const pages = [];
    for await (const hit of client.vectorStores.search(store.id, { query: "coal" })) pages.push(hit);
    assert.ok(pages.length);
  },
  async "what is wrong is told in the SDK's exceptions"() {
    const store = await client.vectorStores.create({});
    const add = client.vectorStores.files.create(store.id, { file_id: "file-none" });
    await assert.rejects(add, refused(404, "file_not_found"));
    await assert.rejects(upload("a.txt", "x", { purpose: "other" }), refused(400, "invalid_request"));
    const filters = { type: "like", key: "a", value: 1 };
    await assert.rejects(client.vectorStores.search(store.id, { query: "x", filters }), refused(400, "invalid_request"));
    await assert.rejects(client.vectorStores.list({ after: "vs_none" }), refused(400, "invalid_request"));
    await assert.rejects(client.vectorStores.list({ before: "vs_none" }), refused(400, "invalid_request"));
  },
};

const results = {};
for (const [name, attempt] of Object.entries(tries)) {
  try {
    await attempt();
    results[name] = "held";
  } catch (error) {
    results[name] = String(error?.message ?? error).slice(0, 1000);
  }
}
console.log(JSON.stringify(results));
