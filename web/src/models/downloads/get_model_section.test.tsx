import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { cleanup, fireEvent, render, screen, within } from "@testing-library/react";
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { repositoryText } from "./download_words";
import type { OfferedModel, OfferedRepository } from "./downloads";
import { GetModelSection } from "./get_model_section";

const request = vi.hoisted(() => vi.fn());
vi.mock("../../api/access", () => ({ useClient: () => ({ request }) }));

const CHOICE: OfferedModel = {
  reference: "hf:u/r:Q4_K_M",
  format: "gguf",
  quantisation: "Q4_K_M",
  main: "u/r/m-Q4_K_M.gguf",
  projector: null,
  size: 2048,
  forecast: { summary: "about 1025 MiB; fits on GPU 0" },
  is_present: false,
  used_by: [],
};
const FOUND: OfferedRepository = {
  repository: "u/r",
  downloads: 7,
  is_gated: true,
  licence: "mit",
  left_out: 2,
  reason: null,
  choices: [
    CHOICE,
    { ...CHOICE, reference: "hf:u/r:Q8_0", quantisation: "Q8_0", size: 4096, projector: "p", used_by: ["mine"] },
  ],
};

let found: OfferedRepository[] = [];
let downloads: unknown[] = [];

beforeEach(() => {
  downloads = [];
  request.mockReset();
  request.mockImplementation(async (path: string, options?: { body?: unknown }) => {
    if (path.endsWith("/search")) return { repositories: found };
    if (path.endsWith("/files")) return { name: "m", declared: "new" };
    return options?.body === undefined
      ? { downloads }
      : { id: "dl_1", reference: "hf:u/r:Q4_K_M", state: "finished", created_at: 1, error: null };
  });
});
afterEach(cleanup);

function search(words: string) {
  render(
    <QueryClientProvider client={new QueryClient()}>
      <GetModelSection />
    </QueryClientProvider>,
  );
  fireEvent.change(screen.getByRole("searchbox"), { target: { value: words } });
  fireEvent.submit(screen.getByRole("form", { name: "Search the hub" }));
}

test("a found model is downloaded, and then served", async () => {
  found = [FOUND];
  search(" qwen ");
  const choice = await screen.findByRole("listitem", { name: CHOICE.reference });
  expect(request).toHaveBeenCalledWith("/v1/admin/downloads/search", { query: { words: "qwen" } });
  expect(choice.textContent).toContain("about 1025 MiB; fits on GPU 0");
  const used = screen.getByRole("listitem", { name: "hf:u/r:Q8_0" });
  expect(within(used).getByRole("link", { name: "mine" })).toBeDefined();
  expect(used.textContent).toContain("with its projector");
  const repository = screen.getByRole("listitem", { name: "u/r" });
  expect(repository.textContent).toContain("It is gated");
  expect(repository.textContent).toContain("2 more are on its page.");
  fireEvent.click(within(choice).getByRole("button", { name: `Download ${CHOICE.reference}` }));
  fireEvent.click(await within(choice).findByRole("button", { name: `Serve ${CHOICE.reference}` }));
  expect(await within(choice).findByRole("link", { name: "m" })).toBeDefined();
  expect(request).toHaveBeenCalledWith("/v1/admin/models/files", { body: { model: CHOICE.main } });
});

test("a repository that cannot be listed says why, and nothing found is one sentence", async () => {
  found = [{ ...FOUND, choices: [], reason: "The hub does not show it." }];
  search("qwen");
  expect((await screen.findByRole("listitem", { name: "u/r" })).textContent).toContain("The hub does not show it.");
  found = [];
  fireEvent.submit(screen.getByRole("form", { name: "Search the hub" }));
  expect((await screen.findByRole("status")).textContent).toBe(
    "The hub has no model in GGUF or safetensors with “qwen” in its name.",
  );
});

test("words that are none are not asked for", () => {
  search("   ");
  expect(request).not.toHaveBeenCalled();
});

test("a repository in words", () => {
  expect(repositoryText(FOUND)).toBe("2 models, 2.0 KiB to 4.0 KiB; 7 downloads a month; licence mit");
  expect(repositoryText({ ...FOUND, choices: [CHOICE], downloads: null, licence: null })).toBe("1 model, 2.0 KiB");
});
