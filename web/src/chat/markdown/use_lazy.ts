/** Modules that are loaded when something needs them. */
import { useEffect, useState } from "react";

/** Returns a module once it is loaded, and null before. `load`: a function of a module's level; null: nothing is needed. */
export function useLazy<T>(load: (() => Promise<T>) | null): T | null {
  const [loaded, setLoaded] = useState<T | null>(null);
  useEffect(() => {
    if (load === null) return;
    let isCurrent = true;
    load().then(
      (module) => isCurrent && setLoaded(() => module),
      // Without the module the text is shown plainly, and the next one that needs the module tries again.
      () => {},
    );
    return () => {
      isCurrent = false;
    };
  }, [load]);
  return loaded;
}
