import { defineConfig } from "@playwright/test";

export default defineConfig({
  testMatch: "*.spec.js",
  testDir: ".",
  outputDir: process.env.OUTPUT,
  timeout: 30_000,
  workers: 1, // the specs share one demo
  reporter: "list",
  use: {
    baseURL: process.env.CONSOLE,
    launchOptions: { executablePath: process.env.CHROMIUM, args: ["--no-sandbox"] },
    viewport: { width: 1280, height: 800 },
  },
});
