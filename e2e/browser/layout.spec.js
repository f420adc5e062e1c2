import { basegate, complete, expect, expectAccessible, expectNoOverflow, signIn, test } from "./console.js";

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
