import { basegate, boxOf, complete, expect, expectAccessible, expectNoOverflow, signIn, test } from "./console.js";

const long = "a-name-without-any-space-that-is-as-long-as-one-can-be-".repeat(2).slice(0, 100);

// linksOf returns the paths that the links of a page lead to and that match.
async function linksOf(page, path, pattern) {
  await page.goto(path);
  return page.locator("main a").evaluateAll((all, source) => [...new Set(all.map((a) => a.getAttribute("href")))].filter((href) => new RegExp(source).test(href)), pattern.source);
}

// expectAccessibleInBothSchemes runs axe in light and dark.
async function expectAccessibleInBothSchemes(page) {
  for (const colorScheme of ["light", "dark"]) {
    await page.emulateMedia({ colorScheme });
    await expectAccessible(page);
  }
  await page.emulateMedia({ colorScheme: null });
}

test("no page is wider than the window, and all are accessible in light and dark", async ({ page }) => {
  test.setTimeout(300_000);
  const secret = basegate("key", "create", "--account", process.env.EMAIL, "--name", long).trim();
  const response = await complete(secret, { user: long });
  expect(response.status).toBe(200);
  await response.text();
  const signedOut = ["/sign-in", "/request-access", "/feedback", "/tutorial/overview", "/tutorial/api", "/tutorial?q=budget", "/tutorial/nowhere"];
  for (const path of signedOut) {
    await page.goto(path);
    await expectNoOverflow(page, path);
    await expectAccessibleInBothSchemes(page);
  }
  await signIn(page);
  const keys = await linksOf(page, "/dashboard", /^\/keys\/key_/);
  await page.goto("/admin/accounts");
  const account = await page.getByRole("link", { name: process.env.EMAIL }).getAttribute("href");
  const keysOfAccount = await linksOf(page, account, /^\/admin\/keys\//);
  const requests = await linksOf(page, "/usage/requests", /^\/usage\/requests\/req_/);
  expect([keys.length, keysOfAccount.length, requests.length].every(Boolean)).toBe(true);
  for (const path of [
    "/dashboard", "/usage", "/usage?account=all", "/usage?account=all&by=account&interval=hour",
    "/usage/requests", "/usage/requests?account=all", requests[0], "/account", "/keys/new", keys[0], "/workbench", "/feedback",
    "/batches", "/files",
    "/admin/overview", "/admin/overview?period=day", "/admin/accounts", account, keysOfAccount[0], "/admin/models", "/admin/batches", "/admin/runs",
    "/admin/feedback", "/admin/audit", "/admin/settings", "/admin/nowhere",
  ]) {
    await page.goto(path);
    for (const summary of await page.locator("main details > summary").all()) {
      const closed = await summary.evaluate((el) => !el.parentElement.open);
      if (closed && (await summary.isVisible())) await summary.evaluate((el) => el.click()); // a pointer could miss it while the page grows
    }
    await expectNoOverflow(page, path);
    await expectAccessibleInBothSchemes(page);
  }
});

test("the workbench is not wider than the window after any action", async ({ page }) => {
  await signIn(page);
  await page.goto("/workbench");
  await expect(page.locator("#bench[data-ready]")).toBeAttached();
  await page.getByLabel("Prompt", { exact: true }).fill(`Once upon a time there was ${long} ${"and then another thing happened ".repeat(20)}`);
  for (const [name, value] of Object.entries({ max_tokens: 40, seed: 4, logprobs: 20, n: 3 })) await page.locator(`#p-${name}`).fill(String(value));
  await page.getByRole("button", { name: "Generate" }).click();
  await expect(page.locator("#generate")).toBeEnabled();
  await expect(page.locator("#prompt .strip li:not(.head)")).toHaveCount(3);
  await expectNoOverflow(page, "three continuations");

  const tokens = page.locator("#prompt [data-i]");
  await tokens.last().click();
  await expect(page.locator("#token").getByRole("button", { name: /^Continue with/ }).first()).toBeVisible();
  await expectNoOverflow(page, "a token's alternatives");
  await expect(page.locator("#token .alternatives li").first()).toBeInViewport({ ratio: 0.9 });

  await page.locator("#p-n").fill("1");
  await page.locator("#token").getByRole("button", { name: /^Continue with/ }).first().click();
  await expect(page.locator("#generate")).toBeEnabled();
  await expectNoOverflow(page, "a branch");

  for (const details of await page.locator("#bench details").all()) {
    const summary = details.locator("summary").first(); // that of the chat mode is hidden
    if ((await details.getAttribute("open")) === null && (await summary.isVisible())) await summary.evaluate((el) => el.click());
  }
  await page.getByRole("button", { name: "curl", exact: true }).click();
  await expectNoOverflow(page, "every panel open");
  await page.getByRole("button", { name: "Score prompt" }).click();
  await expect(page.locator("#scores")).toBeVisible();
  await expectNoOverflow(page, "a score");
});

test("tables use the window's width, and neither names nor addresses break in them", async ({ page }) => {
  await signIn(page);
  await page.setViewportSize({ width: 1920, height: 800 });
  await page.goto("/admin/accounts");
  const row = page.getByRole("row", { name: process.env.EMAIL });
  const lines = (cell) => cell.evaluate((el) => {
    const range = document.createRange();
    range.selectNodeContents(el);
    return range.getClientRects().length;
  });
  expect((await boxOf(page.locator("main table").first())).width).toBeGreaterThan(1800);
  await page.setViewportSize({ width: 1280, height: 800 });
  expect(await lines(row.getByRole("link", { name: process.env.EMAIL }))).toBe(1);
});

test("a printed page is black on white, without navigation and buttons, and with whole tables", async ({ page }) => {
  await signIn(page);
  await page.setViewportSize({ width: 700, height: 1000 }); // a sheet of paper without its margins
  await page.emulateMedia({ colorScheme: "dark", media: "print" });
  await page.goto("/admin/accounts");
  await expect(page.locator("html")).toHaveCSS("background-color", "rgb(255, 255, 255)");
  await expect(page.locator("html")).toHaveCSS("color", "rgb(0, 0, 0)");
  await expect(page.getByRole("navigation")).toHaveCount(0);
  await expect(page.getByRole("button")).toHaveCount(0);
  const table = page.locator("main table").first();
  await expect(table.locator("thead")).toHaveCSS("position", "static");
  expect(await page.evaluate(() => document.documentElement.scrollWidth)).toBeLessThanOrEqual(700);
});

test("fields have letters of 16 px on a phone, which it does not zoom into", async ({ page }) => {
  await signIn(page);
  await page.setViewportSize({ width: 390, height: 844 });
  for (const path of ["/workbench", "/usage", "/usage/requests", "/keys/new", "/admin/accounts", "/files"]) {
    await page.goto(path);
    const fields = page.locator("main :is(input:not([type=checkbox], [type=radio], [type=hidden]), select, textarea, [contenteditable])");
    await expect(fields.first()).toBeAttached();
    const sizes = await fields.evaluateAll((all) => [...new Set(all.map((el) => getComputedStyle(el).fontSize))]);
    expect(sizes, path).toEqual(["16px"]);
  }
});
