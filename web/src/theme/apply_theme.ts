/** Applies the chosen theme before the first paint: a script of its own, since the page's policy allows no inline one. */
import { applyTheme, readTheme } from "./theme";

applyTheme(readTheme());
