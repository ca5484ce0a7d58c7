/** The page's frame: the way between views, and the view of the current route. */
import { lazy, type ReactNode, Suspense } from "react";
import { useAccess } from "./api/access";
import { SignIn } from "./api/sign_in";
import { ChatView } from "./chat/chat_view";
import { routeHash, useRoute, type View } from "./router";
import { BarFrame, BarMenu } from "./ui/bar";
import { Icon, type IconName, Mark } from "./ui/icons";
import { KeyCommands } from "./ui/key_commands";

const ModelsView = lazy(() => import("./models/models_view"));
const DocumentsView = lazy(() => import("./documents/documents_view"));
const ActivityView = lazy(() => import("./activity/activity_view"));
const SettingsView = lazy(() => import("./settings/settings_view"));

const TITLES: Record<View, string> = {
  chat: "Chat",
  models: "Models",
  documents: "Documents",
  activity: "Activity",
  settings: "Settings",
};

const ICONS: Record<View, IconName> = {
  chat: "chat",
  models: "box",
  documents: "document",
  activity: "activity",
  settings: "sliders",
};

export function App() {
  const { needsKey } = useAccess();
  const route = useRoute();
  return (
    <div className="flex h-full flex-col">
      <KeyCommands />
      <a href="#main" className="sr-only focus:not-sr-only focus:absolute focus:z-10 focus:bg-raised focus:p-2">
        Skip to content
      </a>
      <BarFrame ways={<Ways shown={route.view} />}>
        <main id="main" className="min-h-0 flex-1" tabIndex={-1}>
          {needsKey ? (
            <SignIn />
          ) : (
            <Suspense fallback={<p className="p-4 text-faint">Loading…</p>}>{viewOf(route)}</Suspense>
          )}
        </main>
      </BarFrame>
    </div>
  );
}

/** The links to the views. */
function Ways({ shown }: { shown: View }) {
  const face = (
    <>
      <span className="text-text">{TITLES[shown]}</span>
      <Icon name="down" />
    </>
  );
  return (
    <>
      <Mark className="mx-1 size-6 max-md:hidden" />
      <span className="mr-2 font-semibold max-md:hidden">Roundhouse</span>
      <BarMenu label={`Views: ${TITLES[shown]}`} face={face} side="left">
        <nav aria-label="Views" className="flex gap-1 max-md:flex-col">
          {(Object.keys(TITLES) as View[]).map((view) => (
            <a
              key={view}
              href={routeHash(view)}
              aria-current={shown === view ? "page" : undefined}
              className="inline-flex items-center gap-1.5 rounded-md px-3 py-1.5 text-sm text-faint hover:bg-panel aria-[current=page]:bg-panel aria-[current=page]:text-text"
            >
              <span className="md:max-lg:hidden">
                <Icon name={ICONS[view]} />
              </span>
              {TITLES[view]}
            </a>
          ))}
        </nav>
      </BarMenu>
    </>
  );
}

function viewOf({ view, name }: ReturnType<typeof useRoute>): ReactNode {
  switch (view) {
    case "chat":
      return <ChatView conversationId={name} />;
    case "models":
      return <ModelsView name={name} />;
    case "documents":
      return <DocumentsView name={name} />;
    case "activity":
      return <ActivityView />;
    case "settings":
      return <SettingsView />;
  }
}
