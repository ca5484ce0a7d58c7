/** The prompts and resources of all servers, to choose one; what a choice asks for; and the request for it. Loaded late. */
import { useMutation } from "@tanstack/react-query";
import { type ReactNode, useEffect, useRef, useState } from "react";
import { useClient } from "../../../api/access";
import { describeError } from "../../../api/client";
import { ErrorNote } from "../../../ui/controls";
import { draftOfPrompt, type PromptDraft } from "./draft_of_prompt";
import { OfferForm } from "./offer_form";
import {
  getPrompt,
  type ListedPrompt,
  type ListedResource,
  readResource,
  type ServerOffers,
  searchOffers,
} from "./offers";
import { fileOf } from "./resource_file";
import { expandTemplate, variablesOf } from "./uri_template";

type Choice =
  | { kind: "prompt"; server: string; prompt: ListedPrompt }
  | { kind: "resource"; server: string; resource: ListedResource };

interface OffersListProps {
  offers: readonly ServerOffers[];
  /** Takes what was chosen, once the server has sent it. */
  onTake: (draft: PromptDraft) => void;
}

export default function OffersList({ offers, onTake }: OffersListProps) {
  const client = useClient();
  const [choice, setChoice] = useState<Choice | null>(null);
  const [search, setSearch] = useState("");
  const running = useRef<AbortController | null>(null);
  useEffect(() => () => running.current?.abort(), []);
  const asked = useMutation({
    networkMode: "always",
    mutationFn: async ({ chosen, values }: { chosen: Choice; values: Record<string, string> }) => {
      running.current = new AbortController();
      const { signal } = running.current;
      if (chosen.kind === "prompt") {
        return draftOfPrompt(await getPrompt(client, chosen.server, chosen.prompt, values, signal));
      }
      const { uri, name, is_template: isTemplate } = chosen.resource;
      const contents = await readResource(
        client,
        chosen.server,
        isTemplate ? expandTemplate(uri, values) : uri,
        signal,
      );
      const called = isTemplate || contents.length > 1 ? null : name;
      const note = contents.length === 0 ? `${name} is empty: nothing is attached.` : null;
      return { text: "", files: contents.map((each) => fileOf(each, called)), note };
    },
  });

  function ask(chosen: Choice, values: Record<string, string>) {
    asked.mutate({ chosen, values }, { onSuccess: onTake });
  }

  function choose(chosen: Choice) {
    asked.reset();
    if (fieldsOf(chosen).length > 0) setChoice(chosen);
    else ask(chosen, {});
  }

  return (
    <div className="flex flex-col gap-3">
      {asked.error !== null && <ErrorNote {...describeError(asked.error)} />}
      {asked.isPending && (
        <p role="status" className="text-sm text-faint">
          Waiting for the server…
        </p>
      )}
      {choice === null ? (
        <OffersChoice
          offers={searchOffers(offers, search)}
          search={search}
          isAsking={asked.isPending}
          onSearch={setSearch}
          onChoose={choose}
        />
      ) : (
        <OfferForm
          title={nameOf(choice)}
          description={choice.kind === "prompt" ? choice.prompt.description : choice.resource.description}
          fields={fieldsOf(choice)}
          action={choice.kind === "prompt" ? "Insert prompt" : "Attach resource"}
          isAsking={asked.isPending}
          onSubmit={(values) => ask(choice, values)}
          onBack={() => {
            asked.reset();
            setChoice(null);
          }}
        />
      )}
    </div>
  );
}

interface OffersChoiceProps {
  offers: readonly ServerOffers[];
  search: string;
  isAsking: boolean;
  onSearch: (search: string) => void;
  onChoose: (choice: Choice) => void;
}

function OffersChoice({ offers, search, isAsking, onSearch, onChoose }: OffersChoiceProps) {
  return (
    <>
      <input
        type="search"
        aria-label="Search prompts and resources"
        placeholder="Search"
        value={search}
        onChange={({ target }) => onSearch(target.value)}
        className="rounded-md border border-line bg-raised px-2 py-1.5 text-sm"
      />
      {offers.length === 0 && <p className="text-sm text-faint">No prompt and no resource has these words.</p>}
      {offers.map(({ server, isConnected, prompts, resources }) => (
        <section key={server} aria-label={`Server ${server}`}>
          <h3 className="mb-1 text-sm font-semibold">
            {server}
            {isConnected ? "" : " (not connected)"}
          </h3>
          <Entries title="Prompts" server={server}>
            {prompts.map((prompt) => (
              <Entry
                key={prompt.name}
                action="Insert prompt"
                name={prompt.name}
                about={prompt.description}
                isDisabled={isAsking}
                onPress={() => onChoose({ kind: "prompt", server, prompt })}
              />
            ))}
          </Entries>
          <Entries title="Resources" server={server}>
            {resources.map((resource) => (
              <Entry
                key={resource.uri}
                action="Attach resource"
                name={resource.name}
                about={[resource.uri, resource.media_type, resource.description].filter(Boolean).join(" · ")}
                isDisabled={isAsking}
                onPress={() => onChoose({ kind: "resource", server, resource })}
              />
            ))}
          </Entries>
        </section>
      ))}
    </>
  );
}

function Entries({ title, server, children }: { title: string; server: string; children: ReactNode[] }) {
  if (children.length === 0) return null;
  return (
    <>
      <h4 className="px-2 text-xs text-faint">{title}</h4>
      <ul aria-label={`${title} of ${server}`} className="mb-1 flex flex-col">
        {children}
      </ul>
    </>
  );
}

interface EntryProps {
  action: string;
  name: string;
  about: string;
  isDisabled: boolean;
  onPress: () => void;
}

function Entry({ action, name, about, isDisabled, onPress }: EntryProps) {
  return (
    <li>
      <button
        type="button"
        disabled={isDisabled}
        onClick={onPress}
        className="w-full rounded-md px-2 py-1.5 text-left text-sm hover:bg-panel disabled:opacity-60"
      >
        <span className="sr-only">{action} </span>
        <span className="block break-words">{name}</span>
        {about !== "" && <span className="line-clamp-3 break-words text-xs text-faint">{about}</span>}
      </button>
    </li>
  );
}

function nameOf(choice: Choice): string {
  return choice.kind === "prompt" ? choice.prompt.name : choice.resource.name;
}

function fieldsOf(choice: Choice) {
  if (choice.kind === "prompt") {
    return choice.prompt.arguments.map(({ name, description, required }) => ({
      name,
      description,
      isRequired: required,
    }));
  }
  const { uri, is_template: isTemplate } = choice.resource;
  return isTemplate ? variablesOf(uri).map((each) => ({ ...each, description: "" })) : [];
}
