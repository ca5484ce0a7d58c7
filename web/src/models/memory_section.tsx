/** Memory: bars for each GPU, or why there is none, and what engines claim of main memory. */
import { describeError } from "../api/client";
import { routeHash } from "../router";
import { ErrorNote, Meter, SameByCommand } from "../ui/controls";
import { mibText } from "../ui/figures";
import { CARD, Section } from "../ui/view";
import type { AdminModel, Gpu, GpuMemory } from "./admin_models";
import { type Claim, claimsOn, gpuLabel, HOST, type Part, partsOf, predictedMib } from "./memory_shares";

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
        <section aria-label="Main memory" className={CARD}>
          <h3 className="font-medium">Main memory</h3>
          <ClaimList claims={hostClaims} />
        </section>
      )}
      <SameByCommand command="roundhouse gpu" />
    </Section>
  );
}

/** One bar for each GPU and one for main memory, of what each model claims. Shows nothing where nothing is claimed or read. */
export function MemoryBars({ models, memory }: Pick<MemorySectionProps, "models" | "memory">) {
  const gpus = (memory?.gpus ?? []).map((gpu) => ({
    label: gpuLabel(gpu),
    note: `${mibText(gpu.used_mib)} of ${mibText(gpu.total_mib)} used`,
    parts: partsOf(claimsOn(gpu.uuid, models), gpu.used_mib, gpu.total_mib),
  }));
  const claims = claimsOn(HOST, models);
  const claimed = claims.reduce((sum, { claimedMib }) => sum + claimedMib, 0);
  const total = memory?.host_mib ?? null;
  const host = {
    label: "Main memory",
    note: `${mibText(claimed)} ${total === null ? "" : `of ${mibText(total)} `}claimed`,
    parts: partsOf(claims, null, total),
  };
  const bars = claimed > 0 ? [...gpus, host] : gpus;
  if (bars.length === 0) return null;
  return (
    <section aria-label="Memory by model" className="flex flex-col gap-2">
      {bars.map(({ label, note, parts }) => (
        <div key={label}>
          <p className="mb-1 flex justify-between gap-2 text-sm">
            <span className="shrink-0 font-medium">{label}</span>
            <span className="text-right tabular-nums text-faint">{note}</span>
          </p>
          <ul aria-label={label} className="flex h-8 overflow-hidden rounded-md border border-line text-xs">
            {parts.map((part, index) => (
              <BarPart key={part.model ?? part.kind} part={part} isOdd={index % 2 === 1} />
            ))}
          </ul>
        </div>
      ))}
    </section>
  );
}

function BarPart({ part: { kind, model, mib }, isOdd }: { part: Part; isOdd: boolean }) {
  const text = `${model ?? (kind === "others" ? "Other programs" : "Free")}: ${mibText(mib)}`;
  const colour = isOdd ? "bg-bubble text-text" : "bg-accent-ground text-on-accent";
  const place = "flex h-full items-center px-2";
  return (
    <li
      title={text}
      className={`min-w-6 basis-0 border-line not-last:border-r ${kind === "model" ? "" : kind === "others" ? "bg-line" : "text-faint"}`}
      style={{ flexGrow: mib }}
    >
      {model === null ? (
        <span className={place}>
          <span className="truncate">{text}</span>
        </span>
      ) : (
        <a href={routeHash("models", model)} className={`${place} ${colour}`}>
          <span className="truncate">{text}</span>
        </a>
      )}
    </li>
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
    <section aria-label={label} className={CARD}>
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
