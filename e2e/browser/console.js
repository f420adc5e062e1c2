// What every spec needs: signing in, the command line, accessibility, and a look at pages.
import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { test as base, expect } from "@playwright/test";

const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

export { expect };

// The page of every test fails it where a script fails, a policy is violated, or anything comes from another origin.
export const test = base.extend({
  page: async ({ page }, use) => {
    const complaints = watch(page);
    await use(page);
    expect(complaints).toEqual([]);
  },
});

// watch collects what must not happen on a page.
export function watch(page) {
  const complaints = [];
  const home = new URL(process.env.CONSOLE).origin;
  page.on("pageerror", (error) => complaints.push(`script: ${error.message}`));
  page.on("console", (message) => {
    if (/Content Security Policy/.test(message.text())) complaints.push(`policy: ${message.text()}`);
  });
  page.on("request", (request) => {
    const url = request.url();
    if (!url.startsWith(home) && !url.startsWith("data:") && !url.startsWith("blob:")) complaints.push(`foreign: ${url}`);
  });
  return complaints;
}

export async function signIn(page, email = process.env.EMAIL, password = process.env.PASSWORD) {
  await page.goto("/sign-in");
  await page.getByLabel("E-mail").fill(email);
  await page.getByLabel("Password").fill(password);
  await page.getByRole("button", { name: "Sign in" }).click();
  await expect(page).toHaveURL(/\/dashboard/);
}

// basegate runs a command on the demo's configuration and returns what it prints.
export function basegate(...args) {
  return execFileSync(process.env.BASEGATE, [...args, "--config", process.env.CONFIG], { encoding: "utf8" });
}

// complete asks the public API for a completion.
export async function complete(key, body = {}) {
  return fetch(new URL("/v1/completions", process.env.CONSOLE), {
    method: "POST",
    headers: { Authorization: `Bearer ${key}`, "Content-Type": "application/json" },
    body: JSON.stringify({ model: "llama-8b", prompt: "The capital of France is", max_tokens: 8, ...body }),
  });
}

// accessible runs axe. It is put into the page by the debugger, which the page's policy does not concern.
export async function accessible(page) {
  await page.evaluate(axe);
  const found = await page.evaluate(() => window.axe.run(document, { resultTypes: ["violations"] }));
  const bad = found.violations
    .filter((v) => v.impact === "serious" || v.impact === "critical")
    .map((v) => `${v.id}: ${v.nodes.map((n) => `${n.target} ${n.failureSummary}`).join("; ")}`);
  expect(bad, await page.title()).toEqual([]);
}

// look checks a page in light and dark, wide and narrow, and photographs it where that was asked for.
export async function look(page, name) {
  for (const scheme of ["light", "dark"]) {
    for (const width of [1280, 390]) {
      await page.emulateMedia({ colorScheme: scheme });
      await page.setViewportSize({ width, height: width === 390 ? 844 : 800 });
      await accessible(page);
      const overflow = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
      expect(overflow, `${name} is wider than a screen of ${width}`).toBeLessThanOrEqual(0);
      if (process.env.SCREENSHOTS) {
        await page.screenshot({ path: `${process.env.SCREENSHOTS}/${name}-${scheme}-${width}.png`, fullPage: true });
      }
    }
  }
  await page.emulateMedia({ colorScheme: null });
  await page.setViewportSize({ width: 1280, height: 800 });
}
