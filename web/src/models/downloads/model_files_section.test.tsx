import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { cleanup, fireEvent, render, screen } from "@testing-library/react";
import { afterEach, expect, test, vi } from "vitest";
import type { ModelFile } from "./downloads";
import { ModelFilesSection } from "./model_files_section";

const request = vi.hoisted(() => vi.fn());
vi.mock("../../api/access", () => ({ useClient: () => ({ request }) }));

const FILE: ModelFile = {
  path: "there.gguf",
  folder: "/models",
  kind: "file",
  size: 2048,
  origin: "hand",
  reference: null,
  used_by: [],
  memory_by_model: {},
  memory_mib: null,
  memory_on: null,
  memory_source: null,
  serve_as: "there",
  reason: null,
};

afterEach(() => {
  cleanup();
  vi.useRealTimers();
});

test("a file that no model uses is a click away, and one that cannot be served says why", async () => {
  const models = [
    FILE,
    { ...FILE, path: "cut.gguf", serve_as: null, reason: "it ends within its head" },
    {
      ...FILE,
      path: "used.gguf",
      serve_as: null,
      used_by: ["mine", "wide"],
      memory_by_model: { mine: { ...FILE, memory_mib: 512 }, wide: { ...FILE, memory_mib: null } },
    },
  ];
  request.mockImplementation(async (_: string, options?: { body?: unknown }) =>
    options?.body === undefined
      ? { folders: ["/models"], models, total_bytes: 6144, is_complete: true }
      : { name: "there", declared: "new" },
  );
  render(
    <QueryClientProvider client={new QueryClient()}>
      <ModelFilesSection />
    </QueryClientProvider>,
  );
  fireEvent.click(await screen.findByRole("button", { name: "Serve there.gguf" }));
  expect((await screen.findByRole("status")).textContent).toBe("Served as there, once it is loaded.");
  expect(request).toHaveBeenCalledWith("/v1/admin/models/files", { body: { model: "/models/there.gguf" } });
  expect(screen.getAllByRole("button")).toHaveLength(1);
  expect(screen.getByRole("listitem", { name: "cut.gguf" }).textContent).toContain("it ends within its head");
  expect(screen.getByRole("listitem", { name: "used.gguf" }).textContent).toContain(
    "mine 512 MiB of memory, wide memory not known;",
  );
});

test("a file that was served meanwhile because it is there is loaded, and the list follows the folder", async () => {
  vi.useFakeTimers({ shouldAdvanceTime: true });
  let models = [FILE];
  request.mockImplementation(async (_: string, options?: { body?: unknown }) =>
    options?.body === undefined
      ? { folders: ["/models"], models, total_bytes: 2048, is_complete: true }
      : { name: "its/name", declared: "before" },
  );
  render(
    <QueryClientProvider client={new QueryClient()}>
      <ModelFilesSection />
    </QueryClientProvider>,
  );
  fireEvent.click(await screen.findByRole("button", { name: "Serve there.gguf" }));
  expect((await screen.findByRole("status")).textContent).toBe("Served as its/name, once it is loaded.");
  expect(request).toHaveBeenCalledWith("/v1/admin/models/its/name/load", {
    body: {},
    query: { wait: false, restart: null },
  });
  models = [FILE, { ...FILE, path: "new.gguf" }];
  await vi.advanceTimersByTimeAsync(5100);
  expect(await screen.findByRole("listitem", { name: "new.gguf" })).toBeDefined();
});
