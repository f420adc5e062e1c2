import { basegate, complete, expect, checkPage, signIn, test } from "./console.js";

const digits = (text) => Number(text.replace(/\D/g, ""));

test("the chart has the same figures as basegate usage", async ({ page }) => {
  for (const [model, user] of [["llama-8b", "run-1"], ["llama-8b", "run-2"], ["llama-405b", "run-1"], ["trinity-base", ""]]) {
    const response = await complete(process.env.API_KEY, { model, ...(user && { user }) });
    expect(response.status).toBe(200);
    await response.json();
  }
  expect((await complete(process.env.API_KEY, { model: "llama-8b", n: 0 })).status).toBe(400);
  await signIn(page);
  await page.getByRole("link", { name: "Usage", exact: true }).click();
  await checkPage(page, "usage");
  await page.getByText("Show as table").click();
  const table = page.getByRole("region", { name: "Tokens per day" });
  const headers = (await table.locator("thead th").allTextContents()).slice(1, -1);
  const sums = Object.fromEntries(headers.map((h) => [h, 0]));
  for (const row of await table.locator("tbody tr").all()) {
    const cells = (await row.locator("td").allTextContents()).map(digits);
    headers.forEach((h, i) => { sums[h] += cells[i]; });
  }
  const expected = {};
  for (const row of JSON.parse(basegate("usage", "--by", "model", "--account", process.env.EMAIL, "--json"))) {
    expected[row.model] = row.prompt_tokens + row.completion_tokens;
  }
  expect(sums).toEqual(expected);

  const [download] = await Promise.all([page.waitForEvent("download"), page.getByRole("link", { name: "CSV of the groups" }).click()]);
  expect(download.suggestedFilename()).toMatch(/by-model\.csv$/);

  await page.locator("select[name=account]").selectOption("all");
  await page.getByRole("button", { name: "Show" }).click();
  await expect(page).toHaveURL(/account=all/);
  await page.locator("select[name=by]").selectOption("account");
  await page.getByRole("button", { name: "Show" }).click();
  await expect(page.getByRole("heading", { name: "By Account" })).toBeVisible();
});

test("requests are listed, filtered and searched", async ({ page }) => {
  await signIn(page);
  await page.goto("/usage/requests");
  await checkPage(page, "requests");
  await page.getByLabel("Search").fill("run-1");
  await page.getByRole("button", { name: "Show" }).click();
  await expect(page.locator("tbody tr").first()).toContainText("run-1");
  await page.getByLabel("Outcome").selectOption("failed");
  await page.getByRole("button", { name: "Show" }).click();
  await expect(page.getByText("No matching requests.")).toBeVisible();
});
