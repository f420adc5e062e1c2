import { readFileSync } from "node:fs";
import { basegate, checkPage, complete, expect, signIn, test } from "./console.js";

const firstPages = ["/dashboard", "/usage?account=all", "/usage/requests", "/workbench", "/batches", "/files", "/account", "/admin/accounts", "/tutorial/overview"];

const fileTypes = { csv: "text/csv; charset=utf-8", json: "application/json", jsonl: "application/jsonl" };

// fileFormat returns the format of the file that a link downloads, or null if it leads to a page.
function fileFormat(path) {
  const { pathname, searchParams } = new URL(path, process.env.CONSOLE);
  if (pathname === "/usage/requests.csv") return "csv";
  if (/^\/files\/.*\/content$/.test(pathname)) return "jsonl";
  return pathname === "/usage/export" ? (searchParams.get("format") ?? "csv") : null;
}

// createBatch creates a batch of two lines, of which one fails, and waits for its end.
async function createBatch() {
  const line = (id, prompt) => JSON.stringify({ custom_id: id, method: "POST", url: "/v1/completions", body: { model: "llama-8b", prompt, max_tokens: 2 } });
  const call = async (path, init) => (await fetch(new URL(path, process.env.CONSOLE), { ...init, headers: { Authorization: `Bearer ${process.env.API_KEY}` } })).json();
  const form = new FormData();
  form.append("purpose", "batch");
  form.append("file", new File([line("short", "Once"), "\n", line("long", "Once upon a time ".repeat(20_000))], "links.jsonl"));
  const file = await call("/v1/files", { method: "POST", body: form });
  const order = { input_file_id: file.id, endpoint: "/v1/completions", completion_window: "1h" };
  const batch = await call("/v1/batches", { method: "POST", body: JSON.stringify(order) });
  await expect.poll(async () => (await call(`/v1/batches/${batch.id}`)).status, { timeout: 60_000 }).toBe("completed");
}

test("every link of every page leads to a page or a file", async ({ page }) => {
  await (await complete(process.env.API_KEY)).text();
  await createBatch();
  await signIn(page);
  const seen = new Set(firstPages);
  const templates = new Map(); // how many pages of the same kind were read
  const queue = [...firstPages];
  for (let path; (path = queue.shift()); ) {
    const response = await page.request.get(path);
    expect(response.status(), path).toBe(200);
    const type = response.headers()["content-type"];
    const format = fileFormat(path);
    if (format) {
      expect(type, path).toBe(fileTypes[format]);
      expect(response.headers()["content-disposition"], path).toMatch(new RegExp(`\\.${format}"?$`));
    }
    if (!type.startsWith("text/html")) continue;
    const kind = path.replace(/[?#].*/, "").replace(/(_|file-)[A-Za-z0-9]+/, "_");
    templates.set(kind, (templates.get(kind) ?? 0) + 1);
    if (templates.get(kind) > 3) continue;
    const html = await response.text();
    for (const [, href] of html.matchAll(/<a\s[^>]*?href="([^"]+)"/g)) {
      const url = new URL(href.replaceAll("&amp;", "&"), response.url());
      if (url.origin !== new URL(process.env.CONSOLE).origin) continue;
      if (url.hash && url.pathname === new URL(response.url()).pathname) expect(html, `${path} has no ${url.hash}`).toContain(`id="${url.hash.slice(1)}"`);
      const next = url.pathname + url.search;
      if (!seen.has(next)) { seen.add(next); queue.push(next); }
    }
  }
  expect(templates.size).toBeGreaterThan(25);
});

// download clicks a link and returns the name and the lines of the file.
async function download(page, link) {
  const [file] = await Promise.all([page.waitForEvent("download"), link.click()]);
  return { name: file.suggestedFilename(), lines: readFileSync(await file.path(), "utf8").trim().split(/\r?\n/) };
}

test("a file has the range and the account of its page", async ({ page }) => {
  basegate("account", "create", "dora@example.org");
  const secret = basegate("key", "create", "--account", "dora@example.org", "--name", "doras-key").trim();
  await (await complete(secret, { user: "doras-user", model: "trinity-base" })).text();
  await (await complete(process.env.API_KEY, { user: "own-user" })).text();
  await signIn(page);
  await page.goto("/usage");
  await page.locator("select[name=account]").selectOption({ label: "dora@example.org" });
  await page.getByRole("button", { name: "Show" }).click();
  await expect(page).toHaveURL(/account=acc_/);
  const ranges = page.getByRole("navigation", { name: "Ranges" });
  for (const [by, content] of [["model", "trinity-base"], ["key", "doras-key"], ["user", "doras-user"]]) {
    await ranges.getByRole("link", { name: "This month" }).click();
    await page.locator("select[name=by]").selectOption(by);
    await page.getByRole("button", { name: "Show" }).click();
    await expect(page).toHaveURL(new RegExp(`by=${by}`));
    const from = (await page.locator("input[name=from]").inputValue()).replaceAll("-", "");
    const total = (await page.locator("dl.summary .headline").first().textContent()).trim();
    const links = page.getByRole("link", { name: /^CSV of/ });
    await expect(links).toHaveCount(3);
    for (const link of await links.all()) {
      const { name, lines } = await download(page, link);
      expect(name).toContain(from);
      const text = lines.join("\n");
      expect(text, name).not.toContain("own-user");
      expect(lines, name).toHaveLength(2); // the header and Dora's only request
      const column = (title) => Number(lines[1].split(",")[lines[0].split(",").indexOf(title)]);
      expect(String(column("prompt_tokens") + column("completion_tokens")), name).toBe(total);
      if (name.includes(`by-${by}.`)) expect(text).toContain(content);
      if (/by-request\.csv/.test(name)) for (const part of ["trinity-base", "doras-key", "doras-user"]) expect(text).toContain(part);
    }
  }
  await ranges.getByRole("link", { name: "Last month" }).click();
  const day = async (name) => (await page.locator(`input[name=${name}]`).inputValue()).replaceAll("-", "");
  await expect(page.getByText("No tokens were used in this range.")).toBeVisible();
  const { name, lines } = await download(page, page.getByRole("link", { name: "CSV of all requests" }));
  expect(name).toContain(`${await day("from")}-${await day("to")}`);
  expect(lines).toHaveLength(1);
});

test("the CSV file of the requests has the filter of its page", async ({ page }) => {
  for (const user of ["filter-1", "filter-2"]) await (await complete(process.env.API_KEY, { user })).text();
  await signIn(page);
  await page.goto("/usage/requests");
  await page.getByLabel("Search").fill("filter-2");
  await page.getByRole("button", { name: "Show" }).click();
  await expect(page).toHaveURL(/q=filter-2/);
  const { lines } = await download(page, page.getByRole("link", { name: "CSV" }));
  expect(lines).toHaveLength(2);
  expect(lines[1]).toContain("filter-2");
});

test("an unknown path outside the console is a page", async ({ page }) => {
  const response = await page.goto("/nowhere/at-all");
  expect(response.status()).toBe(404);
  await expect(page.getByRole("heading", { name: "Page not found" })).toBeVisible();
  await checkPage(page, "unknown-path");
});
