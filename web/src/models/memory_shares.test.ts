import { expect, test } from "vitest";
import type { AdminModel } from "./admin_models";
import { claimsOn, gpuLabel, HOST, mainMemories, partsOf, predictedMib } from "./memory_shares";

function modelOf(name: string, ...claims: [Record<string, number>, Record<string, number>][]): AdminModel {
  const replicas = claims.map(([now, start], index) => ({
    name: `${name}-${index}`,
    claims: now,
    start_claims: start,
  }));
  return { name, replica_details: replicas } as unknown as AdminModel;
}

test("claims are those of the device alone, the largest first", () => {
  const models = [
    modelOf("a", [{ "GPU-1": 100 }, { "GPU-1": 90 }], [{ "GPU-2": 7 }, {}]),
    modelOf("b", [{ "GPU-1": 300, host: 5 }, { "GPU-1": 310 }]),
  ];
  const claims = claimsOn("GPU-1", models);
  expect(claims.map((claim) => [claim.replica, claim.claimedMib, claim.predictedMib])).toEqual([
    ["b-0", 300, 310],
    ["a-0", 100, 90],
  ]);
  expect(predictedMib(claims)).toBe(400);
  expect(claimsOn(HOST, models).map((claim) => claim.model)).toEqual(["b"]);
  expect(claimsOn("GPU-3", models)).toEqual([]);
});

test("memory is parted by model, others and what is free", () => {
  const models = [
    modelOf("a", [{ gpu: 100 }, {}], [{ gpu: 200 }, {}]),
    modelOf("b", [{ gpu: 400 }, {}]),
    modelOf("idle", [{ gpu: 0 }, {}]),
  ];
  const parts = (used: number | null, total: number | null) =>
    partsOf(claimsOn("gpu", models), used, total).map(({ kind, model, mib }) => [model ?? kind, mib]);
  expect(parts(750, 1000)).toEqual([
    ["b", 400],
    ["a", 300],
    ["others", 50],
    ["free", 250],
  ]);
  // What is claimed is not free, though it is not used yet.
  expect(parts(200, 1000).slice(2)).toEqual([["free", 300]]);
  expect(parts(null, null).slice(2)).toEqual([]);
});

test("an instance of a GPU is named with its GPU", () => {
  expect([gpuLabel({ index: 0, mig: null }), gpuLabel({ index: 1, mig: 2 })]).toEqual(["GPU 0", "GPU 1, MIG 2"]);
});

test("several hosts have a main memory each, and name their GPUs", () => {
  expect(mainMemories(undefined)).toEqual([{ key: HOST, label: "Main memory", total: null }]);
  expect(mainMemories({ host_mib: 64 })).toEqual([{ key: HOST, label: "Main memory", total: 64 }]);
  const b = { name: "b", state: "ready", reason: null, last_heard: null, memory_mib: 9, claimed_mib: 0, engines: [] };
  expect(mainMemories({ host_mib: 9, hosts: [b] })).toEqual([{ key: "host:b", label: "Main memory of b", total: 9 }]);
  expect(gpuLabel({ index: 0, mig: 1, host: "b" })).toBe("GPU b/0, MIG 1");
});
