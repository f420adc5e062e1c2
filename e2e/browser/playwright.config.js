import { defineConfig } from "@playwright/test";

// Each worker has a demo of its own, which the script run has started: DEMOS is their number, and the values of the demo N
// are in the variables that end in _N.
const demo = process.env.TEST_PARALLEL_INDEX ?? "0";
for (const name of ["CONSOLE", "EMAIL", "PASSWORD", "API_KEY", "CONFIG", "PID"]) process.env[name] = process.env[`${name}_${demo}`];

export default defineConfig({
  testMatch: "*.spec.js",
  testDir: ".",
  outputDir: process.env.OUTPUT,
  timeout: 180_000, // also on a loaded machine
  expect: { timeout: 30_000 },
  workers: Number(process.env.DEMOS), // the tests of a file share a demo
  reporter: "list",
  use: {
    baseURL: process.env.CONSOLE,
    launchOptions: { executablePath: process.env.CHROMIUM, args: ["--no-sandbox"] },
    viewport: { width: 1280, height: 800 },
  },
});
