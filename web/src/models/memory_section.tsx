/** Memory: bars for each GPU, or why there is none, and what engines claim of main memory. */
import { describeError } from "../api/client";
import { ErrorNote, Meter, SameByCommand } from "../ui/controls";
import { mibText } from "../ui/figures";
import { Section } from "../ui/view";
import type { AdminModel, Gpu, GpuMemory } from "./admin_models";
import { type Claim, claimsOn, gpuLabel, HOST, predictedMib } from "./memory_shares";

interface MemorySectionProps {
  models: readonly AdminModel[];
  /** Undefined: not read yet. */
  memory: GpuMemory | undefined;
  error: Error | null;
}

export function MemorySection({ models, memory, error }: MemorySectionProps) {
  const hostClaims = claimsOn(HOST, models);
  return (
    <Section title="Memory">
      {error && <ErrorNote {...describeError(error)} />}
      {memory?.gpus.map((gpu) => (
        <GpuCard key={gpu.uuid} gpu={gpu} claims={claimsOn(gpu.uuid, models)} />
      ))}
      {memory?.unread_gpus.map((gpu) => (
        <ErrorNote key={gpu.description} message={gpu.description} />
      ))}
      {memory !== undefined && memory.gpus.length === 0 && memory.unread_gpus.length === 0 && (
        <p className="text-sm">
          This host has no GPU that Roundhouse can use{memory.error ? `: ${memory.error}` : ""}.
        </p>
      )}
      {hostClaims.length > 0 && (
        <section aria-label="Main memory" className="rounded-lg border border-line bg-panel p-3">
          <h3 className="font-medium">Main memory</h3>
          <ClaimList claims={hostClaims} />
        </section>
      )}
      <SameByCommand command="roundhouse gpu" />
    </Section>
  );
}

function GpuCard({ gpu, claims }: { gpu: Gpu; claims: readonly Claim[] }) {
  const label = gpuLabel(gpu);
  const bars = [
    ["used", gpu.used_mib],
    ["claimed", gpu.claimed_mib],
    ["predicted", predictedMib(claims)],
  ] as const;
  return (
    <section aria-label={label} className="rounded-lg border border-line bg-panel p-3">
      <h3 className="mb-1 font-medium">
        {label} <span className="font-normal text-faint">{gpu.name}</span>
        {gpu.utilization_percent !== null && (
          <span className="font-normal text-faint"> busy {gpu.utilization_percent} %</span>
        )}
      </h3>
      {gpu.is_unified && <p className="text-sm text-faint">Its memory is the host's main memory.</p>}
      {bars.map(([name, mib]) => (
        <Meter
          key={name}
          label={`${label} ${name}`}
          share={gpu.total_mib === 0 ? 0 : mib / gpu.total_mib}
          text={`${mibText(mib)} of ${mibText(gpu.total_mib)}`}
        />
      ))}
      <ClaimList claims={claims} />
    </section>
  );
}

function ClaimList({ claims }: { claims: readonly Claim[] }) {
  return (
    <ul className="mt-1 text-sm text-faint">
      {claims.map((claim) => (
        <li key={claim.replica} className="break-words">
          {claim.model}: {mibText(claim.claimedMib)} claimed, {mibText(claim.predictedMib)} at its start
        </li>
      ))}
    </ul>
  );
}
