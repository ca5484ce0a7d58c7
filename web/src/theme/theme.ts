/** The colour theme: light, dark, or what the system says. */

export const THEMES = ["system", "light", "dark"] as const;
export type Theme = (typeof THEMES)[number];

const STORED = "roundhouse.theme";

/** Returns the theme chosen in this browser; `system` if none was, or the browser keeps nothing. */
export function readTheme(): Theme {
  try {
    const stored = localStorage.getItem(STORED);
    return THEMES.find((theme) => theme === stored) ?? "system";
  } catch {
    return "system";
  }
}

/** Shows the page in the theme, and follows the system's changes for `system`. */
export function applyTheme(theme: Theme): void {
  document.documentElement.dataset.theme = theme;
}

/** Applies the theme and keeps the choice in this browser, if the browser keeps anything. */
export function chooseTheme(theme: Theme): void {
  applyTheme(theme);
  try {
    localStorage.setItem(STORED, theme);
  } catch {
    // Without storage the choice lasts as long as the page.
  }
}

/** Returns whether the page is dark now. */
export function isDark(): boolean {
  const theme = document.documentElement.dataset.theme;
  return theme === "dark" || (theme !== "light" && matchMedia("(prefers-color-scheme: dark)").matches);
}
