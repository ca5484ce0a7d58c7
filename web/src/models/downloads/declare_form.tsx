/** Declares a downloaded model at run time, under a name that the user may change. */
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { type FormEvent, useState } from "react";
import { useClient } from "../../api/access";
import { describeError } from "../../api/client";
import { routeHash } from "../../router";
import { Button, ErrorNote } from "../../ui/controls";
import { Field, INPUT } from "../../ui/view";
import { declareModel } from "../admin_models";
import { DryRunButton } from "../dry_run_button";
import { inspectReference } from "./downloads";

/** `reference`: of the download, which is looked at again for the fields of a definition. `suggested`: null: of that answer. */
export function DeclareForm({ reference, suggested = null }: { reference: string; suggested?: string | null }) {
  const client = useClient();
  const queries = useQueryClient();
  const [name, setName] = useState(suggested ?? "");
  /** Returns the name that is written or suggested, and the fields of the definition. */
  async function readDeclaration() {
    const found = await inspectReference(client, reference);
    return { chosen: name.trim() || found.name, fields: found.fields };
  }

  const declaring = useMutation({
    mutationFn: async () => {
      const { chosen, fields } = await readDeclaration();
      await declareModel(client, chosen, fields);
      return chosen;
    },
    onSettled: () => queries.invalidateQueries({ queryKey: ["admin"] }),
  });

  function submit(event: FormEvent) {
    event.preventDefault();
    if (!declaring.isPending) declaring.mutate();
  }

  return (
    <form onSubmit={submit} aria-label={`Declare ${reference}`} className="mt-2 flex flex-wrap items-end gap-2">
      <Field label="Name of the model">
        <input
          className={INPUT}
          value={name}
          placeholder="made from the reference"
          onChange={(event) => setName(event.target.value)}
        />
      </Field>
      <Button icon="plus" type="submit" aria-disabled={declaring.isPending}>
        Declare as a model
      </Button>
      <DryRunButton
        key={name}
        propose={async () => {
          const { chosen, fields } = await readDeclaration();
          return { models: { [chosen]: fields } };
        }}
      />
      {declaring.data !== undefined && (
        <p role="status" className="text-sm">
          Declared:{" "}
          <a href={routeHash("models", declaring.data)} className="underline underline-offset-2">
            {declaring.data}
          </a>
        </p>
      )}
      {declaring.error && <ErrorNote {...describeError(declaring.error)} />}
    </form>
  );
}
