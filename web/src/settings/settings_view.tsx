/** Settings: of this browser, and what the page knows of the gateway. */
import { queryOptions, useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { useAccess, useClient } from "../api/access";
import type { ApiClient } from "../api/client";
import { addressOf, describeError } from "../api/client";
import { limitsQuery } from "../api/limits";
import { SignIn } from "../api/sign_in";
import { useDrafts } from "../chat/composer/drafts";
import { changePreferences, usePreferences } from "../chat/preferences";
import { chooseTheme, readTheme, THEMES, type Theme } from "../theme/theme";
import { Button, ErrorNote, SameByCommand } from "../ui/controls";
import { KeyList } from "../ui/key_commands";
import { areSingleKeysOn, setSingleKeys } from "../ui/keys";
import { saveFile } from "../ui/save_file";
import { Facts, Section, ViewFrame } from "../ui/view";
import { sayRetention } from "./retention_words";

export default function SettingsView() {
  return (
    <ViewFrame title="Settings">
      <ThemeSection />
      <AccessSection />
      <ConversationsSection />
      <KeysSection />
      <AboutSection />
    </ViewFrame>
  );
}

const THEME_WORDS: Record<Theme, string> = { system: "As the system says", light: "Light", dark: "Dark" };

function ThemeSection() {
  const [theme, setTheme] = useState(readTheme);
  return (
    <Section title="Theme">
      <fieldset className="flex flex-wrap gap-4 text-sm">
        <legend className="sr-only">Theme</legend>
        {THEMES.map((each) => (
          <label key={each} className="flex items-center gap-2">
            <input
              type="radio"
              name="theme"
              checked={theme === each}
              onChange={() => {
                setTheme(each);
                chooseTheme(each);
              }}
            />
            {THEME_WORDS[each]}
          </label>
        ))}
      </fieldset>
    </Section>
  );
}

function AccessSection() {
  const { hasKey, signOut } = useAccess();
  const drafts = useDrafts();
  const queries = useQueryClient();
  const [isEntering, setEntering] = useState(false);
  return (
    <Section title="Access">
      {hasKey ? (
        <>
          <p className="text-sm">
            You are signed in with a key. The page never shows it, and never puts it into an address.
          </p>
          <Button
            className="self-start"
            onClick={() => {
              signOut();
              void drafts.clearAll();
              void queries.resetQueries();
            }}
          >
            Sign out
          </Button>
        </>
      ) : (
        <>
          <p className="text-sm">You are not signed in. The gateway takes requests as it takes any without a key.</p>
          {isEntering ? (
            <SignIn />
          ) : (
            <Button className="self-start" onClick={() => setEntering(true)}>
              Sign in with a key
            </Button>
          )}
        </>
      )}
    </Section>
  );
}

function ConversationsSection() {
  const { keepInBrowser } = usePreferences();
  const { data } = useQuery(limitsQuery(useClient()));
  return (
    <Section title="Conversations">
      <p className="text-sm">
        {sayRetention(data?.retention_s)} This browser has a copy for times without a connection.
      </p>
      <label className="flex items-center gap-2 text-sm">
        <input
          type="checkbox"
          checked={keepInBrowser}
          onChange={(event) => changePreferences({ keepInBrowser: event.target.checked })}
        />
        Keep new conversations in this browser alone
      </label>
    </Section>
  );
}

function KeysSection() {
  const [isOn, setOn] = useState(areSingleKeysOn);
  return (
    <Section title="Keys">
      <KeyList />
      <label className="flex items-center gap-2 text-sm">
        <input
          type="checkbox"
          checked={isOn}
          onChange={(event) => {
            setOn(event.target.checked);
            setSingleKeys(event.target.checked);
          }}
        />
        Keys of a single character, such as ?
      </label>
    </Section>
  );
}

interface Health {
  status: "ok" | "degraded";
  version: string;
  controller: string;
  retrieval: string;
  degraded: { part: string; reason: string }[];
}

function healthQuery(client: ApiClient) {
  return queryOptions({
    queryKey: ["health"],
    queryFn: () => client.request<Health>("/health"),
    refetchInterval: 10_000,
  });
}

function AboutSection() {
  const client = useClient();
  const { data, error } = useQuery(healthQuery(client));
  return (
    <Section title="About">
      {error && <ErrorNote {...describeError(error)} />}
      {data !== undefined && (
        <>
          <Facts
            entries={[
              ["Roundhouse", data.version],
              ["Gateway", data.status],
              ["Controller", data.controller],
              ["Documents", data.retrieval],
            ]}
          />
          <ul className="text-sm text-warn">
            {data.degraded.map(({ part, reason }) => (
              <li key={part}>
                {part}: {reason}
              </li>
            ))}
          </ul>
        </>
      )}
      <p className="text-sm">
        Everything that this page does is a route of the API: <ApiDocument /> has them all. The documentation lies
        beside the program, in the folder <code>docs</code>; docs/page.md is about this page.
      </p>
      <SameByCommand command={`curl ${location.origin}/health`} />
    </Section>
  );
}

/** The gateway's OpenAPI document: as a link, or saved, where a key is needed, which a link cannot send. */
function ApiDocument() {
  const { client, hasKey } = useAccess();
  const saving = useMutation({
    mutationFn: async () =>
      saveFile("openapi.json", await (await client.fetch("/openapi.json")).text(), "application/json"),
  });
  if (!hasKey)
    return (
      <a href={addressOf("/openapi.json")} className="underline underline-offset-2">
        openapi.json
      </a>
    );
  return (
    <button type="button" className="underline underline-offset-2" onClick={() => saving.mutate()}>
      openapi.json
    </button>
  );
}
