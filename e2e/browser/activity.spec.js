import { readFileSync } from "node:fs";
import { basegate, complete, expect, expectNoOverflow, checkPage, signIn, test } from "./console.js";

test("a refused request is listed, filtered and has a page", async ({ page }) => {
  const refused = await complete(process.env.API_KEY, { n: 0 });
  expect(refused.status).toBe(400);
  const id = refused.headers.get("x-request-id");
  expect((await complete(process.env.API_KEY, { user: "browser-run", ignore_eos: true })).status).toBe(200);
  await signIn(page);
  await expect(async () => { // refusals are written once a second
    await page.goto("/usage/requests?ending=refused");
    await expect(page.getByRole("link", { name: id })).toBeVisible({ timeout: 500 });
  }).toPass();
  await checkPage(page, "requests-refused");
  await page.getByRole("link", { name: id }).click();
  await expect(page.getByText("Nothing: the request was refused")).toBeVisible();
  await expect(page.getByText(/The field n was not accepted: expected /)).toBeVisible();
  await page.getByText("Details", { exact: true }).click();
  await expect(page.getByText(`400 · invalid_request · n · ${id}`)).toBeVisible();
  await checkPage(page, "request-refused");

  await page.goto("/usage/requests");
  await page.getByLabel("Outcome").selectOption("succeeded");
  await page.getByLabel("Search").fill("browser-run");
  await page.getByRole("button", { name: "Show" }).click();
  await expect(page.locator("tbody tr")).toHaveCount(1);
  await page.locator("tbody a").click();
  await expect(page.getByText(/\d+ prompt \+ 8 completion tokens/)).toBeVisible();
  await expect(page.getByRole("img", { name: /parts of the request's time/ })).toBeVisible();
  await checkPage(page, "request");
});

test("usage of any range is shown and downloaded", async ({ page }) => {
  test.slow(); // many pages at many widths
  expect((await complete(process.env.API_KEY, { user: "range-run" })).status).toBe(200);
  await signIn(page);
  await page.goto("/usage");
  await checkPage(page, "usage");
  await page.locator("select[name=by]").selectOption("user");
  await page.getByRole("button", { name: "Show" }).click();
  await expect(page.getByRole("region", { name: "Usage by User tag" })).toContainText("range-run");
  await page.locator("select[name=by]").selectOption("model");
  await page.locator("select[name=interval]").selectOption("hour");
  await page.getByRole("navigation", { name: "Ranges" }).getByRole("link", { name: "Today" }).click();
  await expect(page.getByRole("heading", { name: "Tokens per hour" })).toBeVisible();
  await expect(page.getByRole("region", { name: "Latency by" })).toHaveCount(0); // the preset keeps the grouping by user
  await page.locator("select[name=by]").selectOption("model");
  await page.getByRole("button", { name: "Show" }).click();
  await expect(page.getByRole("region", { name: "Latency by Model" })).toContainText("ms");

  const expected = JSON.parse(basegate("usage", "--by", "model", "--account", process.env.EMAIL, "--json"));
  const [json] = await Promise.all([page.waitForEvent("download"), page.getByRole("link", { name: "JSON of the groups" }).click()]);
  expect(json.suggestedFilename()).toMatch(/by-model\.json$/);
  const rows = JSON.parse(readFileSync(await json.path(), "utf8"));
  expect(rows.map((r) => [r.model, r.total_tokens])).toEqual(expected.map((r) => [r.model, r.total_tokens]));
  const [csv] = await Promise.all([page.waitForEvent("download"), page.getByRole("link", { name: "CSV of the intervals" }).click()]);
  expect(readFileSync(await csv.path(), "utf8").split("\n")[0]).toBe("hour,model,requests,errors,prompt_tokens,completion_tokens,total_tokens");
  await page.getByText("Show as table").click();
  await expectNoOverflow(page, "usage-table");
});

test("a bar of usage leads to its requests, by mouse and by keyboard, and charts show latencies and errors", async ({ page }) => {
  const user = "bar-run";
  await (await complete(process.env.API_KEY, { user, stream: true })).text();
  await signIn(page);
  await page.goto("/usage");
  await expect(page.locator("#plot-first-token canvas")).toBeVisible();
  await expect(page.locator("#plot-errors")).toBeVisible();
  await checkPage(page, "usage-charts");
  await page.locator(".chart a").first().click();
  await expect(page).toHaveURL(/\/usage\/requests\?from=[\d-]+&model=[^&]+&to=[\d-]+/);
  await expect(page.locator("tbody")).toContainText(user);

  await page.goto("/usage?interval=hour&by=key&from=" + new Date().toISOString().slice(0, 10));
  await page.getByText("Show as table").click();
  await page.getByRole("region", { name: "Tokens per hour" }).getByRole("cell").getByRole("link").first().press("Enter");
  await expect(page).toHaveURL(/\/usage\/requests\?from=[\d-]+T[^&]+&key=/);
  await expect(page.locator("tbody tr").first()).toBeVisible();
  await checkPage(page, "requests-of-an-hour");
});

test("on a phone the filters are folded and a request is two lines, which lead to its page", async ({ page }) => {
  expect((await complete(process.env.API_KEY)).status).toBe(200);
  await complete(process.env.API_KEY, { max_tokens: 100_000_000 });
  await signIn(page);
  await page.setViewportSize({ width: 390, height: 844 });
  for (const path of ["/usage", "/usage/requests"]) {
    await page.goto(path);
    await expect(page.locator("select[name=model]")).toBeHidden();
    await page.getByText("Filters", { exact: true }).click();
    await expect(page.locator("select[name=model]")).toBeVisible();
  }
  const lines = await page.locator(".requests tbody tr").evaluateAll((rows) => rows.map((row) => {
    const tops = [...row.children].filter((cell) => cell.offsetWidth > 0 && getComputedStyle(cell).position !== "absolute").map((cell) => Math.round(cell.offsetTop / 8));
    return new Set(tops).size;
  }));
  expect(Math.max(...lines)).toBe(2);
  await page.locator(".requests tbody tr").first().click();
  await expect(page.getByRole("heading", { name: "Request", exact: true })).toBeVisible();
  await page.goto("/usage");
  await page.setViewportSize({ width: 1280, height: 800 });
  await expect(page.locator("select[name=model]")).toBeVisible(); // also one that was folded
});

test("the dashboard begins with what is left, and shows first steps to a newcomer", async ({ page }) => {
  basegate("account", "set", process.env.EMAIL, "--monthly-budget", "9M");
  await signIn(page);
  await page.goto("/dashboard");
  await expect(page.getByText(/of the monthly budget of 9.000.000/)).toBeVisible();
  await expect(page.getByRole("img", { name: /tokens in the last 30 days/ })).toHaveCount(0); // one day is no chart
  await expect(page.locator("dl.summary")).toContainText("This month");
  await checkPage(page, "dashboard-summary");
  basegate("account", "set", process.env.EMAIL, "--monthly-budget", "unbounded");

  basegate("account", "create", "newcomer@example.org");
  const invitation = basegate("account", "invite", "newcomer@example.org").trim();
  await page.context().clearCookies();
  await page.goto(new URL(invitation).pathname);
  for (const field of await page.locator("input[type=password]").all()) await field.fill("correct horse battery staple");
  await page.locator("main form button").first().click();
  await expect(page.getByRole("heading", { name: "First steps" })).toBeVisible();
  await checkPage(page, "dashboard-first-steps");
});

test("usage is shown and exported by every interval and grouping, with percentiles and the previous period", async ({ page }) => {
  const workload = { "X-Acs-Workload": "nightly" };
  await (await complete(process.env.API_KEY, { user: "all-groups", stream: true }, workload)).text();
  await signIn(page);
  for (const [by, interval] of [["model", "hour"], ["key", "day"], ["user", "month"], ["workload", "day"], ["endpoint", "hour"]]) {
    await page.goto("/usage");
    if (interval === "hour") await page.getByRole("navigation", { name: "Ranges" }).getByRole("link", { name: "Today" }).click(); // of up to a week
    await page.locator("select[name=by]").selectOption(by);
    await page.locator("select[name=interval]").selectOption(interval);
    await page.getByRole("button", { name: "Show" }).click();
    await expect(page.getByRole("heading", { name: `Tokens per ${interval}` })).toBeVisible();
    await expect(page.locator("dl.summary")).toContainText(/against [\d,]+ in/);
    await expect(page.getByRole("columnheader", { name: "Change" })).toBeVisible();
    if (by !== "user") {
      await expect(page.getByRole("region", { name: /^Latency by/ }).getByRole("columnheader", { name: /^p(50|95|99)$/ })).toHaveCount(6);
    }
    const total = Number((await page.locator("dl.summary .headline").first().textContent()).replace(/\D/g, ""));
    for (const what of ["intervals", "groups"]) {
      const href = await page.getByRole("link", { name: `JSON of the ${what}` }).getAttribute("href");
      const rows = await (await page.request.get(href)).json();
      expect(rows.reduce((sum, row) => sum + row.total_tokens, 0), `${what} by ${by}`).toBe(total);
      const csv = await (await page.request.get(await page.getByRole("link", { name: `CSV of the ${what}` }).getAttribute("href"))).text();
      expect(csv.trim().split(/\r?\n/)).toHaveLength(rows.length + 1);
    }
  }
});

test("the page of a key shows its usage, its last request and its terms", async ({ page }) => {
  const secret = basegate("key", "create", "--account", process.env.EMAIL, "--name", "seen", "--concurrency", "3", "--models", "trinity-base", "--expires", "2100-01-31").trim();
  expect((await complete(secret, { model: "trinity-base" })).status).toBe(200);
  expect((await complete(secret, { model: "llama-8b" })).status).toBe(400); // not allowed, so it is not the last use
  await signIn(page);
  await page.getByRole("link", { name: "seen", exact: true }).click();
  await expect(page.getByText(/tokens in the last 30 days/)).toBeVisible();
  await expect(page.getByText("Last request:").getByRole("link", { name: "trinity-base" })).toBeVisible();
  await expect(page.getByLabel(/^Concurrent requests/)).toHaveValue("3");
  await expect(page.getByLabel(/^Expires on/)).toHaveValue("2100-01-31");
  await expect(page.getByRole("checkbox", { name: "trinity-base" })).toBeChecked();
  await expect(page.getByRole("checkbox", { name: "llama-8b", exact: true })).not.toBeChecked();
  await expect(page.getByLabel("Current secret keeps working")).toHaveValue("24h");
  await page.getByText("Last request:").getByRole("link").click();
  await expect(page.getByRole("heading", { name: "Request" })).toBeVisible();
});
