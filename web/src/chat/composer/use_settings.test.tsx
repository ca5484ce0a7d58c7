import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { act, renderHook } from "@testing-library/react";
import type { ReactNode } from "react";
import { expect, it } from "vitest";
import { AccessProvider } from "../../api/access";
import { readLastModel, storeLastModel } from "../last_model";
import { useSettings } from "./use_settings";

it("changes the model of a conversation, as a starter does, without that of conversations to come", () => {
  storeLastModel("mine");
  const wrapper = ({ children }: { children: ReactNode }) => (
    <QueryClientProvider client={new QueryClient()}>
      <AccessProvider>{children}</AccessProvider>
    </QueryClientProvider>
  );
  const { result } = renderHook(() => useSettings(null), { wrapper });
  expect(result.current.settings.model).toBe("mine");
  act(() => result.current.change({ model: "other" }));
  expect(result.current.settings.model).toBe("other");
  expect(readLastModel()).toBe("mine");
});
