import tailwindcss from "@tailwindcss/vite";
import react from "@vitejs/plugin-react";
import { defineConfig } from "vite";
import { onlyWoff2 } from "./only_woff2.ts";

const GATEWAY = process.env.ROUNDHOUSE_GATEWAY ?? "http://127.0.0.1:8080";

export default defineConfig({
  // Built files name each other by relative addresses, so that the page works below the prefix of a proxy.
  base: process.argv.includes("build") ? "./" : "/page/",
  experimental: {
    // The gateway serves the page itself a folder above its files.
    renderBuiltUrl: (file, { hostId }) => (hostId === "index.html" ? `page/${file}` : { relative: true }),
  },
  plugins: [onlyWoff2(), react(), tailwindcss()],
  build: {
    outDir: process.env.ROUNDHOUSE_PAGE_OUT ?? "../gateway/page/built",
    emptyOutDir: true,
    // The policy of the page allows files of the gateway alone, so nothing is written into them as data: addresses.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    // Mermaid alone is larger, and is loaded where a diagram is shown.
    chunkSizeWarningLimit: 1000,
    rolldownOptions: { input: { index: "index.html", diagram: "diagram.html" } },
  },
  server: {
    proxy: { "^/(?!page/|@|src/|node_modules/)": { target: GATEWAY, changeOrigin: true } },
  },
});
