import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { cleanup, fireEvent, render, screen, waitFor } from "@testing-library/react";
import { afterEach, expect, test, vi } from "vitest";
import type { GpuMemory, Host } from "./admin_models";
import { HostsSection } from "./hosts_section";

const request = vi.hoisted(() => vi.fn());
vi.mock("../api/access", () => ({ useClient: () => ({ request }) }));

const HOST: Host = {
  name: "a",
  state: "ready",
  reason: null,
  last_heard: null,
  memory_mib: 2048,
  claimed_mib: 1024,
  engines: ["m-0"],
};
const MEMORY: GpuMemory = { gpus: [], unread_gpus: [], error: null, driver_version: null, cuda_version: null };

function show(memory: GpuMemory) {
  return render(
    <QueryClientProvider client={new QueryClient()}>
      <HostsSection memory={memory} />
    </QueryClientProvider>,
  );
}

afterEach(cleanup);

test("one host is not shown", () => {
  expect(show(MEMORY).container.textContent).toBe("");
});

test("each host has its state, and a button where it answers", async () => {
  request.mockResolvedValue(HOST);
  const lost = { ...HOST, name: "c", state: "lost", reason: "no word for 15 s", engines: [] };
  show({ ...MEMORY, hosts: [HOST, { ...HOST, name: "b", state: "draining" }, lost], is_cut_off: true });
  expect(screen.getByRole("region", { name: "Host a" }).textContent).toContain("1 engine");
  expect(screen.getByRole("region", { name: "Host c" }).textContent).toContain("no word for 15 s");
  expect(screen.getByText(/1 of 3 hosts do not answer/)).toBeTruthy();
  fireEvent.click(screen.getByRole("button", { name: "Drain host a" }));
  fireEvent.click(screen.getByRole("button", { name: "Undrain host b" }));
  await waitFor(() => expect(request).toHaveBeenCalledTimes(2));
  expect(request.mock.calls).toEqual([
    ["/v1/admin/hosts/a/drain", { method: "POST" }],
    ["/v1/admin/hosts/b/undrain", { method: "POST" }],
  ]);
  expect(screen.getAllByRole("button")).toHaveLength(2);
});
