/** The hosts of an installation with several: their states, and buttons that drain one and use it again. */
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useClient } from "../api/access";
import { describeError } from "../api/client";
import { Button, ErrorNote, SameByCommand } from "../ui/controls";
import { countText, mibText, timeText } from "../ui/figures";
import { CARD, Section } from "../ui/view";
import { changeHost, type GpuMemory, type Host } from "./admin_models";

const COLOURS: Record<string, string> = { ready: "text-good", draining: "text-warn", silent: "text-warn" };

export function HostsSection({ memory }: { memory: GpuMemory | undefined }) {
  const hosts = memory?.hosts ?? [];
  if (hosts.length === 0) return null;
  const away = hosts.filter(({ state }) => state === "silent" || state === "lost").length;
  return (
    <Section title="Hosts">
      {memory?.is_cut_off && (
        <ErrorNote
          message={`The controller is cut off: ${away} of ${hosts.length} hosts do not answer, nothing is moved.`}
        />
      )}
      {hosts.map((host) => (
        <HostCard key={host.name} host={host} />
      ))}
      <SameByCommand command="roundhouse hosts" />
    </Section>
  );
}

function HostCard({ host }: { host: Host }) {
  const client = useClient();
  const queries = useQueryClient();
  const change = useMutation({
    mutationFn: (verb: "drain" | "undrain") => changeHost(client, host.name, verb),
    onSettled: () => queries.invalidateQueries({ queryKey: ["admin"] }),
  });
  const verb = host.state === "draining" ? "undrain" : "drain";
  return (
    <section aria-label={`Host ${host.name}`} className={CARD}>
      <div className="flex flex-wrap items-center justify-between gap-2">
        <h3 className="font-medium">
          {host.name} <span className={`font-normal ${COLOURS[host.state] ?? "text-bad"}`}>● {host.state}</span>
        </h3>
        {(host.state === "ready" || host.state === "draining") && (
          <Button
            aria-label={`${verb === "drain" ? "Drain" : "Undrain"} host ${host.name}`}
            title={verb === "drain" ? "Start nothing more there, and move what runs there" : "Use the host again"}
            aria-disabled={change.isPending}
            onClick={() => !change.isPending && change.mutate(verb)}
          >
            {verb === "drain" ? "Drain" : "Undrain"}
          </Button>
        )}
      </div>
      <p className="text-sm text-faint">
        {countText(host.engines.length, "engine")}, {mibText(host.claimed_mib)}
        {host.memory_mib === null ? "" : ` of ${mibText(host.memory_mib)}`} of main memory claimed
        {host.last_heard === null ? "" : `, last heard ${timeText(host.last_heard)}`}
      </p>
      {host.reason !== null && <p className="text-sm">{host.reason}</p>}
      {change.error && <ErrorNote {...describeError(change.error)} />}
    </section>
  );
}
