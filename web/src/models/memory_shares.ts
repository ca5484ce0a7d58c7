/** Who takes how much of a GPU, or of main memory. Pure. */
import type { AdminModel, Gpu, GpuMemory } from "./admin_models";

/** Key of main memory in the claims of a replica. */
export const HOST = "host";

export interface Claim {
  model: string;
  replica: string;
  /** MiB that the replica claims now, and those that were predicted (or declared) for it at its start. */
  claimedMib: number;
  predictedMib: number;
}

/** Returns the claims of all engines on a device (UUID of a GPU, or `HOST`), the largest first. */
export function claimsOn(device: string, models: readonly AdminModel[]): Claim[] {
  return models
    .flatMap((model) =>
      model.replica_details
        .filter((replica) => device in replica.claims || device in replica.start_claims)
        .map((replica) => ({
          model: model.name,
          replica: replica.name,
          claimedMib: replica.claims[device] ?? 0,
          predictedMib: replica.start_claims[device] ?? 0,
        })),
    )
    .sort((one, other) => other.claimedMib - one.claimedMib);
}

/** Returns the sum of what was predicted for the engines on a device, in MiB. */
export function predictedMib(claims: readonly Claim[]): number {
  return claims.reduce((sum, claim) => sum + claim.predictedMib, 0);
}

/** A part of a device's memory. `model` null: of others (`others`), or of nobody (`free`). */
export interface Part {
  kind: "model" | "others" | "free";
  model: string | null;
  mib: number;
}

/**
 * Returns the parts of a device's memory, the models first, the largest before the others. Parts of nothing are left out.
 * `used`: MiB in use by all programs; `total`: MiB of the device. Null: not known; of main memory, what other programs use is not.
 */
export function partsOf(claims: readonly Claim[], used: number | null, total: number | null): Part[] {
  const byModel = new Map<string, number>();
  for (const { model, claimedMib } of claims) byModel.set(model, (byModel.get(model) ?? 0) + claimedMib);
  const claimed = [...byModel.values()].reduce((sum, mib) => sum + mib, 0);
  const others = Math.max(0, (used ?? 0) - claimed);
  const parts: Part[] = [
    ...[...byModel].map(([model, mib]) => ({ kind: "model" as const, model, mib })),
    { kind: "others", model: null, mib: others },
    { kind: "free", model: null, mib: Math.max(0, (total ?? 0) - claimed - others) },
  ];
  const size = ({ kind, mib }: Part) => (kind === "model" ? mib : kind === "others" ? -1 : -2);
  return parts.filter(({ mib }) => mib > 0).sort((one, other) => size(other) - size(one));
}

/** Returns a GPU's label: `GPU 0`, or `GPU 0, MIG 2`; `GPU b/0` on host `b` of several. */
export function gpuLabel(gpu: Pick<Gpu, "index" | "mig" | "host">): string {
  const name = gpu.host ? `GPU ${gpu.host}/${gpu.index}` : `GPU ${gpu.index}`;
  return gpu.mig === null ? name : `${name}, MIG ${gpu.mig}`;
}

/** Returns the main memory of each host: its key in claims, its label, and its MiB; null: not bounded, or not known. */
export function mainMemories(memory: Pick<GpuMemory, "host_mib" | "hosts"> | undefined) {
  if (memory?.hosts === undefined) return [{ key: HOST, label: "Main memory", total: memory?.host_mib ?? null }];
  return memory.hosts.map(({ name, memory_mib }) => ({
    key: `${HOST}:${name}`,
    label: `Main memory of ${name}`,
    total: memory_mib,
  }));
}
