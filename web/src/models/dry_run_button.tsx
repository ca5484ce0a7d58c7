/** A button that says what a form would do, before it does it. */
import { useMutation } from "@tanstack/react-query";
import { useClient } from "../api/access";
import { describeError } from "../api/client";
import { NetworkError } from "../api/errors";
import { Button, ErrorNote } from "../ui/controls";
import { modelsOf, type Proposal, runDryRun, stepsOf } from "./dry_run";

interface DryRunProps {
  /** Returns what the form would do now. What it throws is told. */
  propose: () => Proposal | Promise<Proposal>;
}

/** The answer stays until the next one; a parent that gives another `key` when its form changes drops it. */
export function DryRunButton({ propose }: DryRunProps) {
  const client = useClient();
  const asking = useMutation({
    mutationFn: async () => {
      const proposal = await propose();
      return stepsOf(await runDryRun(client, proposal), modelsOf(proposal));
    },
    // It changes nothing, so it may be asked again.
    retry: (failures, error) => error instanceof NetworkError && failures < 3,
  });
  return (
    <div className="flex flex-col">
      <Button
        className="self-start"
        aria-disabled={asking.isPending}
        onClick={() => !asking.isPending && asking.mutate()}
      >
        What would happen
      </Button>
      <div role="status">
        {asking.data !== undefined && (
          <ul aria-label="What would happen" className="mt-2 list-disc pl-5 text-sm">
            {asking.data.map(({ text, isObstacle }) => (
              <li key={text} className={isObstacle ? "text-warn" : undefined}>
                {text}.
              </li>
            ))}
          </ul>
        )}
      </div>
      {asking.error && (
        <div className="mt-2">
          <ErrorNote {...describeError(asking.error)} />
        </div>
      )}
    </div>
  );
}
