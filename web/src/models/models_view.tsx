/** Models: a search of the hub, what is declared and why it is as it is, memory, downloads; or one model's page. */
import { useQuery } from "@tanstack/react-query";
import { useClient } from "../api/access";
import { describeError } from "../api/client";
import { ErrorNote, SameByCommand } from "../ui/controls";
import { Section, ViewFrame } from "../ui/view";
import { type AdminModels, adminModelsQuery, gpuMemoryQuery, isForbidden, planQuery } from "./admin_models";
import { DownloadsSection } from "./downloads/downloads_section";
import { GetModelSection } from "./downloads/get_model_section";
import { ModelFilesSection } from "./downloads/model_files_section";
import { HostsSection } from "./hosts_section";
import { MemoryBars, MemorySection } from "./memory_section";
import { ModelPage } from "./model_page";
import { ModelTable } from "./model_table";
import { ReadOnlyModels } from "./read_only_models";

export default function ModelsView({ name }: { name: string | null }) {
  const client = useClient();
  const models = useQuery(adminModelsQuery(client));
  if (models.data === undefined && isForbidden(models.error))
    return <ReadOnlyModels name={name} error={models.error} />;
  if (name !== null) return <ModelPage key={name} name={name} listing={models.data} error={models.error} />;
  return (
    <ViewFrame title="Models">
      {models.error && <ErrorNote {...describeError(models.error)} />}
      {models.data === undefined ? (
        !models.error && <p className="text-faint">Loading…</p>
      ) : (
        <Overview listing={models.data} />
      )}
    </ViewFrame>
  );
}

function Overview({ listing }: { listing: AdminModels }) {
  const client = useClient();
  const memory = useQuery(gpuMemoryQuery(client));
  return (
    <>
      <Notices listing={listing} />
      <GetModelSection />
      <MemoryBars models={listing.models} memory={memory.data} />
      <Section title="Declared models">
        <ModelTable models={listing.models} />
        <PlanNote />
        <SameByCommand command="roundhouse status" />
      </Section>
      <HostsSection memory={memory.data} />
      <MemorySection models={listing.models} memory={memory.data} error={memory.error} />
      <DownloadsSection />
      <ModelFilesSection />
    </>
  );
}

/** What concerns all models: broken files, a paused controller, an observation that fails. */
function Notices({ listing }: { listing: AdminModels }) {
  return (
    <>
      {listing.paused && (
        <p className="rounded-md border border-warn px-3 py-2 text-sm">
          The controller is paused: it observes, and changes nothing. <code>roundhouse resume</code> lets it act again.
        </p>
      )}
      {listing.observation_error !== null && <ErrorNote message={listing.observation_error} />}
      {listing.desired_problems.map((problem) => (
        <ErrorNote
          key={`${problem.file}:${problem.line}:${problem.field}:${problem.message}`}
          message={`${problem.file}${problem.line === null ? "" : `:${problem.line}`}: ${problem.field === null ? "" : `${problem.field}: `}${problem.message}`}
        />
      ))}
    </>
  );
}

/** What the controller is about to do. Mostly nothing: it acts at once. */
function PlanNote() {
  const client = useClient();
  const { data } = useQuery(planQuery(client));
  if (data === undefined || data.actions.length === 0) return null;
  return (
    <details className="text-sm">
      <summary className="cursor-pointer">What the controller does next: {data.actions.length} steps</summary>
      <ul className="mt-1 list-disc pl-5">
        {data.actions.map((action) => (
          <li key={`${action.kind}:${action.model}:${action.replica}`}>
            {action.kind} {action.replica ?? action.model}: {action.reason}
          </li>
        ))}
      </ul>
      <SameByCommand command="roundhouse plan" />
    </details>
  );
}
