/** Memory: bars for each GPU, or why there is none, and what engines claim of main memory. */
import { describeError } from "../api/client";
import { routeHash } from "../router";
import { ErrorNote, Meter, SameByCommand } from "../ui/controls";
import { mibText } from "../ui/figures";
import { CARD, Section } from "../ui/view";
import type { AdminModel, Gpu, GpuMemory } from "./admin_models";
import { type Claim, claimsOn, gpuLabel, mainMemories, type Part, partsOf, predictedMib } from "./memory_shares";

interface MemorySectionProps {
  models: readonly AdminModel[];
  /** Undefined: not read yet. */
  memory: GpuMemory | undefined;
  error: Error | null;
}

export function MemorySection({ models, memory, error }: MemorySectionProps) {
  const mainClaims = mainMemories(memory)
    .map(({ key, label }) => ({ label, claims: claimsOn(key, models) }))
    .filter(({ claims }) => claims.length > 0);
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
      {mainClaims.map(({ label, claims }) => (
        <section key={label} aria-label={label} className={CARD}>
          <h3 className="font-medium">{label}</h3>
          <ClaimList claims={claims} />
        </section>
      ))}
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
  const main = mainMemories(memory).flatMap(({ key, label, total }) => {
    const claims = claimsOn(key, models);
    const claimed = claims.reduce((sum, { claimedMib }) => sum + claimedMib, 0);
    const note = `${mibText(claimed)} ${total === null ? "" : `of ${mibText(total)} `}claimed`;
    return claimed > 0 ? [{ label, note, parts: partsOf(claims, null, total) }] : [];
  });
  const bars = [...gpus, ...main];
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
