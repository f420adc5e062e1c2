// Helpers of all specs: sign-in, the command line, accessibility, and layout checks with screenshots.
import { execFileSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test as base, expect } from "@playwright/test";

const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

export { expect };

// test fails if a script of its page fails, the content security policy is violated, or a request goes to another origin.
export const test = base.extend({
  page: async ({ page }, use) => {
    const violations = collectViolations(page);
    await use(page);
    if (!page.isClosed()) await page.unrouteAll({ behavior: "ignoreErrors" }); // a handler may still fetch, and would fail when the page is closed
    expect(violations).toEqual([]);
  },
});

// collectViolations records script errors, policy violations and requests to other origins.
export function collectViolations(page) {
  const violations = [];
  const home = new URL(process.env.CONSOLE).origin;
  page.on("pageerror", (error) => violations.push(`script: ${error.message}`));
  page.on("console", (message) => {
    if (/Content Security Policy/.test(message.text())) violations.push(`policy: ${message.text()}`);
  });
  page.on("request", (request) => {
    const url = request.url();
    if (!url.startsWith(home) && !url.startsWith("data:") && !url.startsWith("blob:")) violations.push(`other origin: ${url}`);
  });
  return violations;
}

// boxOf returns the place of an element, which a page may replace meanwhile.
export async function boxOf(locator) {
  let box = null;
  await expect.poll(async () => { box = await locator.boundingBox(); return box; }).not.toBeNull();
  return box;
}

export async function signIn(page, email = process.env.EMAIL, password = process.env.PASSWORD) {
  await page.goto("/sign-in");
  await page.getByLabel("E-mail").fill(email);
  await page.getByLabel("Password").fill(password);
  await page.getByRole("button", { name: "Sign in" }).click();
  await expect(page).toHaveURL(/\/dashboard/);
  await page.waitForLoadState("load"); // the page's script has run, so its shortcuts work
}

// basegate runs a command with the demo's configuration and returns its stdout.
export function basegate(...args) {
  return execFileSync(process.env.BASEGATE, [...args, "--config", process.env.CONFIG], { encoding: "utf8" });
}

// complete sends a completion request to the public API.
export async function complete(key, body = {}, headers = {}) {
  return fetch(new URL("/v1/completions", process.env.CONSOLE), {
    method: "POST",
    headers: { Authorization: `Bearer ${key}`, "Content-Type": "application/json", ...headers },
    body: JSON.stringify({ model: "llama-8b", prompt: "The capital of France is", max_tokens: 8, ...body }),
  });
}

// expectAccessible runs axe and expects no serious or critical violations. evaluate bypasses the page's content security policy.
export async function expectAccessible(page) {
  await page.evaluate(axe);
  const result = await page.evaluate(() => window.axe.run(document, { resultTypes: ["violations"] }));
  const severe = result.violations
    .filter((v) => v.impact === "serious" || v.impact === "critical")
    .map((v) => `${v.id}: ${v.nodes.map((n) => `${n.target} ${n.failureSummary}`).join("; ")}`);
  expect(severe, await page.title()).toEqual([]);
}

export const widths = [360, 390, 768, 1024, 1280, 1440, 1920];

// expectNoOverflow expects that nothing is wider than the window at any width. A color scheme changes colors only.
export async function expectNoOverflow(page, name) {
  const before = page.viewportSize();
  for (const width of widths) {
    await page.setViewportSize({ width, height: 800 });
    const wide = await page.evaluate(() => {
      const root = document.documentElement;
      const scrolls = (el) => { for (; el; el = el.parentElement) if (getComputedStyle(el).overflowX !== "visible") return true; return false; };
      const culprits = root.scrollWidth <= innerWidth ? [] : [...document.body.querySelectorAll("*")]
        .filter((el) => el.getBoundingClientRect().right > innerWidth + 1 && !scrolls(el.parentElement));
      return { over: root.scrollWidth - innerWidth, culprits: culprits.slice(-3).map((el) => el.outerHTML.slice(0, 120)) };
    });
    expect.soft(wide, `${name} at ${width} px`).toEqual({ over: expect.any(Number), culprits: [] });
    expect.soft(wide.over, `${name} at ${width} px`).toBeLessThanOrEqual(0);
  }
  await page.setViewportSize(before);
}

// checkPage checks accessibility in light and dark, wide and narrow, and overflow at all widths. With SCREENSHOTS it saves
// screenshots.
export async function checkPage(page, name) {
  await expectNoOverflow(page, name);
  for (const scheme of ["light", "dark"]) {
    for (const width of [1280, 390]) {
      await page.emulateMedia({ colorScheme: scheme });
      await page.setViewportSize({ width, height: width === 390 ? 844 : 800 });
      await expectAccessible(page);
      if (process.env.SCREENSHOTS) {
        await page.screenshot({ path: `${process.env.SCREENSHOTS}/${name}-${scheme}-${width}.png`, fullPage: true });
      }
    }
  }
  await page.emulateMedia({ colorScheme: null });
  await page.setViewportSize({ width: 1280, height: 800 });
}

// hide makes a page believe that its tab is hidden, or shown again.
export const hide = (page, hidden) => page.evaluate((value) => {
  Object.defineProperty(document, "hidden", { value, configurable: true });
  document.dispatchEvent(new Event("visibilitychange"));
}, hidden);

// freePort returns a port of the loopback interface that nothing listens on. It is below the kernel's ephemeral ports, so that
// nothing else is given it, also while its server is stopped.
export async function freePort() {
  for (;;) {
    const port = 10_000 + Math.floor(Math.random() * 20_000);
    const server = createServer().listen(port, "127.0.0.1");
    const free = await new Promise((resolve) => server.once("listening", () => resolve(true)).once("error", () => resolve(false)));
    if (free) {
      await new Promise((resolve) => server.close(resolve));
      return port;
    }
  }
}

// addToConfig adds models, as YAML, to the end of the demo's configuration. It returns a function that removes them.
export function addToConfig(models) {
  const before = readFileSync(process.env.CONFIG, "utf8");
  const reload = (config) => {
    writeFileSync(process.env.CONFIG, config);
    process.kill(Number(process.env.PID), "SIGHUP");
  };
  reload(before + models);
  return () => reload(before);
}

// addColdModel adds the model cold-8b, which the gateway can start and stop, to the demo. It returns a function that removes it.
export async function addColdModel() {
  const port = await freePort();
  const dir = mkdtempSync(join(tmpdir(), "basegate-cold-"));
  const script = (name, text) => {
    writeFileSync(join(dir, name), `#!/bin/sh\n${text}\n`, { mode: 0o700 });
    return join(dir, name);
  };
  const start = script("start", `echo $$ > ${dir}/pid; echo loading weights of cold-8b; sleep 5
exec ${process.env.BASEGATE} mockvllm --listen 127.0.0.1:${port} --model org/cold-8b`);
  const stop = script("stop", `echo shutting down; kill "$(cat ${dir}/pid)"; while kill -0 "$(cat ${dir}/pid)" 2>/dev/null; do sleep 0.05; done; rm ${dir}/pid`);
  const remove = addToConfig(`  - id: cold-8b
    checkpoint: org/cold-8b
    backends:
      - {name: box, url: "http://127.0.0.1:${port}", launch: {start: ["${start}"], stop: ["${stop}"], boot_estimate: 3s}}
`);
  return () => {
    remove();
    try { process.kill(Number(readFileSync(join(dir, "pid"), "utf8"))); } catch { /* it was stopped */ }
    rmSync(dir, { recursive: true });
  };
}
