/** Who takes how much of a GPU, or of main memory. Pure. */
import type { AdminModel, Gpu } from "./admin_models";

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

/** Returns a GPU's label: `GPU 0`, or `GPU 0, MIG 2`. */
export function gpuLabel(gpu: Pick<Gpu, "index" | "mig">): string {
  return gpu.mig === null ? `GPU ${gpu.index}` : `GPU ${gpu.index}, MIG ${gpu.mig}`;
}
