/** Models as a key without the scope `admin` sees them: what there is and which state it has. */
import { useQuery } from "@tanstack/react-query";
import { useClient } from "../api/access";
import { describeError } from "../api/client";
import { routeHash } from "../router";
import { ErrorNote, SameByCommand, showCode } from "../ui/controls";
import { CARD, Facts, ViewFrame } from "../ui/view";
import { type ListedModel, modelsQuery } from "./models";
import { StateMark } from "./state_mark";

export function ReadOnlyModels({ name, error }: { name: string | null; error: Error | null }) {
  const client = useClient();
  const listed = useQuery(modelsQuery(client));
  const shown = listed.data?.filter((model) => name === null || model.id === name);
  return (
    <ViewFrame title={name ?? "Models"}>
      <p className="text-sm text-faint">
        To see why a model waits, and to load or unload it, a key with the scope admin is needed.
        {error && showCode(` ${describeError(error).message}`)}
      </p>
      {name !== null && <a href={routeHash("models")}>All models</a>}
      {listed.error && <ErrorNote {...describeError(listed.error)} />}
      {shown?.length === 0 && <p>{name === null ? "The key may use no model." : `No model is named ${name}.`}</p>}
      <ul aria-label="Models" className="flex flex-col gap-2">
        {shown?.map((model) => (
          <ReadOnlyModel key={model.id} model={model} />
        ))}
      </ul>
      <SameByCommand command={`curl -H "Authorization: Bearer $KEY" ${location.origin}/v1/models`} />
    </ViewFrame>
  );
}

function ReadOnlyModel({ model }: { model: ListedModel }) {
  return (
    <li aria-label={model.id} className={CARD}>
      <h2 className="mb-1 flex flex-wrap items-center gap-x-3 font-medium">
        <span className="break-all">{model.id}</span>
        <StateMark state={model.state} text={model.status.value === "downloading" ? "downloading" : model.state} />
      </h2>
      <Facts
        entries={[
          ["Backend", model.backend],
          ["Other names", model.aliases.join(", ")],
          ["Takes", model.modalities.join(", ")],
          ["Context", model.context_length === null ? "not known" : `${model.context_length} tokens`],
          ["APIs", model.apis.join(" ")],
        ]}
      />
    </li>
  );
}
