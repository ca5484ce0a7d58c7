import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { act, cleanup, fireEvent, render, screen } from "@testing-library/react";
import { afterEach, expect, it, vi } from "vitest";
import { AccessProvider } from "../../api/access";
import { ChatLink } from "../../models/chat_link";
import type { ListedModel } from "../../models/models";
import { firstModel, groupByState, LoadOffer, ModelPicker } from "./model_picker";

afterEach(() => {
  cleanup();
  vi.unstubAllGlobals();
});

function model(id: string, state: ListedModel["state"], aliases: string[] = []): ListedModel {
  return { id, state, aliases } as ListedModel;
}

const MODELS = [
  model("broken", "failed"),
  model("cold", "unloaded", ["gpt-4o"]),
  model("going", "unloading"),
  model("hot", "loaded"),
  model("warm", "loading"),
];

it("begins with the model used last, else the default, else the first loaded, and with a failed one last of all", () => {
  expect(firstModel(MODELS, "broken", "cold")).toBe("broken");
  expect(firstModel(MODELS, "gone", "gpt-4o")).toBe("cold");
  expect(firstModel(MODELS, undefined, null)).toBe("hot");
  expect(firstModel(MODELS, undefined, "gone")).toBe("hot");
  expect(firstModel([model("broken", "failed"), model("cold", "unloaded")], undefined, null)).toBe("cold");
  expect(firstModel([model("broken", "failed")], undefined, null)).toBe("broken");
  expect(firstModel([], "gone", null)).toBe("");
});

it("lists models by state, the failed ones last, and finds them by the words of names and aliases", () => {
  const shown = (search: string) =>
    groupByState(MODELS, search).map(({ title, models }) => [title, models.map(({ id }) => id)]);
  expect(shown("")).toEqual([
    ["Loaded", ["hot"]],
    ["Loading", ["warm"]],
    ["Not loaded", ["cold", "going"]],
    ["Failed", ["broken"]],
  ]);
  expect(shown("GPT 4o")).toEqual([["Not loaded", ["cold"]]]);
  expect(shown("nothing")).toEqual([]);
});

it("chooses by Enter the first model that was found, and none without a search or at the end of a word's composition", () => {
  HTMLElement.prototype.hidePopover ??= () => {};
  const onChoose = vi.fn();
  const many = Array.from({ length: 12 }, (_, index) => model(`m${index}`, "loaded")).map((each) => ({
    ...each,
    modalities: [],
    capabilities: { tools: false },
    context_length: null,
  }));
  render(<ModelPicker models={many as unknown as ListedModel[]} chosen="m0" isDisabled={false} onChoose={onChoose} />);
  const search = screen.getByLabelText("Search models");
  fireEvent.keyDown(search, { key: "Enter" });
  fireEvent.change(search, { target: { value: "m7" } });
  fireEvent.keyDown(search, { key: "Enter", keyCode: 229 });
  expect(onChoose).not.toHaveBeenCalled();
  fireEvent.keyDown(search, { key: "Enter" });
  expect(onChoose.mock.calls).toEqual([["m7"]]);
});

it("says the whole reason of a model that failed, and offers no chat with it among Models", async () => {
  const reason = "needs 9 MiB of main memory; free: 5 of the 8 MiB: lower `memory_mib`, or take a smaller model";
  const fields = { modalities: [], capabilities: { tools: false }, context_length: null, apis: ["/v1/responses"] };
  const data = [model("broken", "failed"), model("hot", "loaded")].map((each) => ({ ...each, ...fields, reason }));
  render(<ModelPicker models={data as unknown as ListedModel[]} chosen="hot" isDisabled={false} onChoose={() => {}} />);
  expect(screen.getByTitle(reason).className).toContain("line-clamp-4");
  vi.stubGlobal("fetch", async () => new Response(JSON.stringify({ data })));
  render(
    <QueryClientProvider client={new QueryClient()}>
      <AccessProvider>
        <ChatLink name="hot" />
        <ChatLink name="broken" />
      </AccessProvider>
    </QueryClientProvider>,
  );
  expect(await screen.findByRole("link", { name: "Chat with hot" })).toBeDefined();
  expect(screen.queryByRole("link", { name: "Chat with broken" })).toBeNull();
});

/** Shows offers to load, of a gateway that takes a load when `take` is called. Returns also the addresses it was asked. */
function offers() {
  const asked: string[] = [];
  let take = () => {};
  const taken = new Promise<void>((resolve) => {
    take = resolve;
  });
  vi.stubGlobal("fetch", async (address: string) => {
    asked.push(address);
    if (address.includes("/load")) await taken;
    const data = ["cold", "other"].map((id) => ({ id, state: "loading", aliases: [] }));
    return new Response(JSON.stringify({ data }));
  });
  const queries = new QueryClient();
  const show = (id: string, onTaken: (() => void) | null) => (
    <QueryClientProvider client={queries}>
      <AccessProvider>
        <LoadOffer model={{ ...model(id, "unloaded"), status: {} } as ListedModel} onTaken={onTaken} />
      </AccessProvider>
    </QueryClientProvider>
  );
  const settle = async () => {
    take();
    await act(() => vi.waitFor(() => expect(queries.isMutating()).toBe(0)));
  };
  return { asked, show, settle };
}

it("sends the message that waited when its load was asked for, once, as soon as the gateway has taken the load", async () => {
  const { asked, show, settle } = offers();
  const send = vi.fn();
  render(show("cold", send));
  fireEvent.click(screen.getByRole("button", { name: "Load it and send" }));
  await settle();
  expect(send).toHaveBeenCalledTimes(1);
  expect(asked[0]).toMatch(/\/v1\/admin\/models\/cold\/load\?wait=false$/);
});

it("sends nothing that was written after the load was asked for, or after another model was chosen", async () => {
  const plain = offers();
  const send = vi.fn();
  const { rerender, unmount } = render(plain.show("cold", null));
  fireEvent.click(screen.getByRole("button", { name: "Load it" }));
  rerender(plain.show("cold", send));
  await plain.settle();
  unmount();

  const changed = offers();
  const second = render(changed.show("cold", send));
  fireEvent.click(screen.getByRole("button", { name: "Load it and send" }));
  second.rerender(changed.show("other", send));
  await changed.settle();
  second.unmount();

  const left = offers();
  const third = render(left.show("cold", send));
  fireEvent.click(screen.getByRole("button", { name: "Load it and send" }));
  third.unmount();
  await left.settle();
  expect(send).not.toHaveBeenCalled();
});
