import type { Plugin } from "vite";

const OLDER_FORMATS = /,\s*url\([^)]*\)\s*format\("(?:woff|truetype)"\)/g;

/**
 * Leaves the older formats of KaTeX's fonts out of the build: every browser that runs this page reads woff2. Fails the
 * build where KaTeX's styles name its fonts otherwise than expected.
 */
export function onlyWoff2(): Plugin {
  return {
    name: "only-woff2",
    enforce: "pre",
    transform: {
      filter: { id: /\/katex\/dist\/katex(\.min)?\.css$/ },
      handler(styles) {
        const shortened = styles.replace(OLDER_FORMATS, "");
        if (shortened === styles || /\.(?:woff|ttf)\b/.test(shortened))
          this.error("KaTeX's fonts are named otherwise.");
        return { code: shortened, map: null };
      },
    },
  };
}
