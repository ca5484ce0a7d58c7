/** Whether the block of Markdown around an element still grows: what is costly, or may change its kind, waits for its end. */
import { createContext, use } from "react";

export const GrowingContext = createContext(false);

export function useIsGrowing(): boolean {
  return use(GrowingContext);
}
