/** The page's frame: the way between views, and the view of the current route. */
import { lazy, type ReactNode, Suspense } from "react";
import { useAccess } from "./api/access";
import { SignIn } from "./api/sign_in";
import { ChatView } from "./chat/chat_view";
import { routeHash, useRoute, type View } from "./router";
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

export function App() {
  const { needsKey } = useAccess();
  const route = useRoute();
  return (
    <div className="flex h-full flex-col">
      <KeyCommands />
      <a href="#main" className="sr-only focus:not-sr-only focus:absolute focus:z-10 focus:bg-raised focus:p-2">
        Skip to content
      </a>
      <header className="flex items-center gap-3 border-b border-line px-3 py-1">
        <span className="font-semibold max-sm:hidden">Roundhouse</span>
        <nav aria-label="Views" className="flex flex-1 gap-1 overflow-x-auto max-sm:gap-0">
          {(Object.keys(TITLES) as View[]).map((view) => (
            <a
              key={view}
              href={routeHash(view)}
              aria-current={route.view === view ? "page" : undefined}
              className="rounded-md px-3 py-1.5 text-sm text-faint max-sm:px-2 hover:bg-panel aria-[current=page]:bg-panel aria-[current=page]:text-text"
            >
              {TITLES[view]}
            </a>
          ))}
        </nav>
      </header>
      <main id="main" className="min-h-0 flex-1" tabIndex={-1}>
        {needsKey ? (
          <SignIn />
        ) : (
          <Suspense fallback={<p className="p-4 text-faint">Loading…</p>}>{viewOf(route)}</Suspense>
        )}
      </main>
    </div>
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
