import { expect, it } from "vitest";
import type { ListedModel } from "../../models/models";
import { BUILT_IN } from "./sources";
import { startersOf } from "./starters";

function model(id: string, tools: boolean, modalities: string[] = ["text"]): ListedModel {
  return { id, state: "loaded", aliases: [], capabilities: { tools }, modalities } as unknown as ListedModel;
}

const SOURCES = [
  { label: "away", title: "away", tools: ["look"], isConnected: false },
  { label: BUILT_IN, title: "Built-in tools", tools: ["fetch_page", "calculate"], isConnected: true },
];

it("makes starters of documents, tools and models that are there, with the settings that they need", () => {
  const chosen = model("able", true);
  const starters = startersOf({ documents: ["coal.md", "old.md"], sources: SOURCES, models: [chosen], chosen });
  expect(starters.map(({ title, settings }) => [title, settings])).toEqual([
    ["Ask about coal.md", { collections: ["documents"] }],
    ["Use Built-in tools", { toolServers: [BUILT_IN] }],
    ["Meet able", {}],
  ]);
  expect(starters[1]?.text).toContain("Calculate");
});

it("offers no tools to a model that calls none, and three starters in any case", () => {
  const plain = model("plain", false);
  const seeing = model("seeing", false, ["text", "image"]);
  const titles = (models: ListedModel[], chosen: ListedModel) =>
    startersOf({ documents: [], sources: SOURCES, models, chosen }).map(({ title }) => title);
  expect(titles([plain, seeing], plain)).toEqual(["Meet plain", "Try seeing", "Have it explained"]);
  expect(titles([seeing], seeing)).toEqual(["Meet seeing", "Show a picture", "Have it explained"]);
});
