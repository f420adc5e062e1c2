import { readFileSync } from "node:fs";
import { basegate, complete, expect, expectNoOverflow, checkPage, signIn, test } from "./console.js";

test("a refused request is listed, filtered and has a page", async ({ page }) => {
  const refused = await complete(process.env.API_KEY, { n: 0 });
  expect(refused.status).toBe(400);
  const id = refused.headers.get("x-request-id");
  expect((await complete(process.env.API_KEY, { user: "browser-run" })).status).toBe(200);
  await signIn(page);
  await expect(async () => { // refusals are written once a second
    await page.goto("/usage/requests?ending=refused");
    await expect(page.getByRole("link", { name: id })).toBeVisible({ timeout: 500 });
  }).toPass();
  await checkPage(page, "requests-refused");
  await page.getByRole("link", { name: id }).click();
  await expect(page.getByText("Nothing: the request was refused")).toBeVisible();
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

test("usage of any range is explored and downloaded", async ({ page }) => {
  test.slow(); // many pages at many widths
  expect((await complete(process.env.API_KEY, { user: "explore-run" })).status).toBe(200);
  await signIn(page);
  await page.goto("/usage");
  await page.getByRole("link", { name: "Explore" }).click();
  await checkPage(page, "explore");
  await page.locator("select[name=by]").selectOption("user");
  await page.getByRole("button", { name: "Show" }).click();
  await expect(page.getByRole("region", { name: "Usage by User tag" })).toContainText("explore-run");
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
  await page.getByText("Show as a table").click();
  await expectNoOverflow(page, "explore-table");
});

test("the dashboard begins with what is left, and shows first steps to a newcomer", async ({ page }) => {
  basegate("account", "set", process.env.EMAIL, "--monthly-budget", "9M");
  await signIn(page);
  await page.goto("/dashboard");
  await expect(page.getByText(/of the monthly budget of 9.000.000/)).toBeVisible();
  await expect(page.getByRole("img", { name: /tokens in the last 30 days/ }).first()).toBeVisible();
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
