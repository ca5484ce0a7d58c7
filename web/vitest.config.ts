import { defineConfig, mergeConfig } from "vitest/config";
import viteConfig from "./vite.config";

// Beside the configuration of the build, which is made without vitest.
export default mergeConfig(
  viteConfig,
  defineConfig({ test: { environment: "jsdom", include: ["src/**/*.test.{ts,tsx}"], restoreMocks: true } }),
);
