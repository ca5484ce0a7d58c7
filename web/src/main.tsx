import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { StrictMode } from "react";
import { createRoot } from "react-dom/client";
import { AccessProvider } from "./api/access";
import { ApiError } from "./api/errors";
import { App } from "./app";
import { DraftsProvider } from "./chat/composer/drafts";
import { RunsProvider } from "./chat/runs";
import "./theme/page.css";

const queries = new QueryClient({
  defaultOptions: {
    // What the browser says of a network does not count: the gateway may be on this machine, and without it the
    // conversations are read from the browser's copy.
    mutations: { networkMode: "always" },
    queries: {
      staleTime: 2000,
      networkMode: "always",
      // What the gateway refuses, it refuses again.
      retry: (failures, error) => !(error instanceof ApiError) && failures < 3,
    },
  },
});

const root = document.getElementById("root");
if (root === null) throw new Error("index.html has no element #root");
createRoot(root).render(
  <StrictMode>
    <QueryClientProvider client={queries}>
      <AccessProvider>
        <RunsProvider>
          <DraftsProvider>
            <App />
          </DraftsProvider>
        </RunsProvider>
      </AccessProvider>
    </QueryClientProvider>
  </StrictMode>,
);
