import { expectAccessible, basegate, complete, expect, checkPage, signIn, test } from "./console.js";

const password = "a password for the browser";

test("a user accepts an invitation, creates a key, spends tokens and pauses the key", async ({ page, context }) => {
  await context.grantPermissions(["clipboard-read", "clipboard-write"]);
  const invitation = basegate("account", "invite", "ada@example.org").trim();
  await page.goto(invitation);
  await checkPage(page, "invitation");
  await page.getByLabel(/^New password/).fill(password);
  await page.getByLabel("Confirm new password").fill(password + "!");
  await page.getByRole("button", { name: "Set password" }).click();
  await expect(page.getByRole("alert")).toContainText("different");
  await page.getByLabel(/^New password/).fill(password);
  await page.getByLabel("Confirm new password").fill(password);
  await page.getByRole("button", { name: "Set password" }).click();
  await expect(page).toHaveURL(/dashboard/);
  await expect(page.getByText("No keys yet")).toBeVisible();
  await checkPage(page, "dashboard-empty");

  await page.getByRole("link", { name: "New key" }).click();
  await checkPage(page, "new-key");
  await page.getByLabel("Name").fill("notebook");
  await page.getByLabel("Tokens per month", { exact: true }).fill("20k");
  await page.getByRole("button", { name: "Create key" }).click();
  const secret = await page.locator("#secret").textContent();
  await page.getByRole("button", { name: "Copy key" }).click();
  await expect.poll(() => page.evaluate(() => navigator.clipboard.readText())).toBe(secret);
  await expectAccessible(page);
  const curl = await page.locator("#curl").textContent();
  const { execFileSync } = await import("node:child_process");
  const completion = JSON.parse(execFileSync("sh", ["-c", curl], { encoding: "utf8" }));
  expect(completion.choices[0].text.length).toBeGreaterThan(0);

  await page.getByRole("link", { name: "Back to the dashboard" }).click();
  const row = page.getByRole("row", { name: /notebook/ });
  await expect(row).toContainText(`${completion.usage.total_tokens} of 20`);
  await checkPage(page, "dashboard");

  await row.getByRole("button", { name: "Pause" }).click();
  await expect(row).toContainText("paused");
  await expect.poll(async () => (await complete(secret)).status).toBe(401);
  await row.getByRole("button", { name: "Resume" }).click();
  await expect(row.getByRole("button", { name: "Pause" })).toBeVisible(); // the form's page, before another is opened
  await expect.poll(async () => (await complete(secret)).status).toBe(200);

  await page.goto("/dashboard");
  await row.getByRole("link", { name: /^Edit/ }).click();
  await checkPage(page, "key");
  await page.getByRole("textbox", { name: "Tokens per day" }).fill("5");
  await page.getByRole("button", { name: "Save" }).click();
  await expect(page.getByRole("status").nth(1)).toContainText("Key notebook: daily budget used up");
  expect((await complete(secret)).status).toBe(429);
  await checkPage(page, "dashboard-cap-hit");

  await row.getByRole("link", { name: /^Edit/ }).click();
  await page.getByRole("textbox", { name: "Tokens per day" }).fill("");
  await page.getByLabel("Expires on").fill("2100-01-31");
  await page.getByRole("checkbox", { name: "llama-8b", exact: true }).check();
  await page.getByRole("button", { name: "Save" }).click();
  await expect(row).toContainText("expires 31 Jan 2100");
  await expect(row).toContainText("only llama-8b");
  expect((await complete(secret)).status).toBe(200);

  await row.getByRole("link", { name: /^Edit/ }).click();
  await page.getByLabel("Current secret keeps working").selectOption("1h");
  await page.getByRole("button", { name: "Create new secret" }).click();
  const rotated = await page.locator("#secret").textContent();
  expect(rotated).not.toBe(secret);
  await checkPage(page, "key-rotated");
  for (const each of [rotated, secret]) expect((await complete(each)).status).toBe(200);
  await page.getByRole("link", { name: "Back to the dashboard" }).click();
  await expect(row).toContainText("old secret works until");

  await row.getByRole("link", { name: /^Edit/ }).click();
  await page.getByText("Revoke key…").click();
  await page.getByRole("button", { name: "Yes, revoke notebook" }).click();
  await expect(page.getByText("1 revoked key")).toBeVisible();
  await expect.poll(async () => (await complete(secret)).status).toBe(401);
});

test("what the operator has set for a key is shown as such and cannot be changed", async ({ page }) => {
  await page.goto(basegate("account", "invite", "lea@example.org").trim());
  await page.getByLabel(/^New password/).fill(password);
  await page.getByLabel("Confirm new password").fill(password);
  await page.getByRole("button", { name: "Set password" }).click();
  await expect(page).toHaveURL(/dashboard/);
  const secret = basegate("key", "create", "--account", "lea@example.org", "--name", "cluster", "--daily-budget", "5000", "--concurrency", "12").trim();
  const id = JSON.parse(basegate("key", "list", "--json")).find((key) => key.name === "cluster" && key.account === "lea@example.org").id;
  basegate("key", "pause", id);
  await page.reload();
  const row = page.getByRole("row", { name: /cluster/ });
  await expect(row).toContainText("paused by the operator");
  await expect(row.getByRole("button", { name: "Resume" })).toBeDisabled();
  await checkPage(page, "dashboard-paused-by-operator");

  await row.getByRole("link", { name: /^Edit/ }).click();
  await expect(page.getByRole("button", { name: "Resume key" })).toBeDisabled();
  await expect(page.getByLabel("Concurrent requests (set by the operator)")).toBeDisabled();
  await checkPage(page, "key-of-operator");
  await page.getByLabel("Tokens per day (set by the operator: up to").fill("6000");
  await page.getByRole("button", { name: "Save" }).click();
  await expect(page.getByRole("alert")).toContainText("The operator has set this");
  await page.getByRole("textbox", { name: "Tokens per day" }).fill("4000");
  await page.getByRole("button", { name: "Save" }).click();
  await expect(page).toHaveURL(/dashboard/);

  basegate("key", "resume", id);
  await expect.poll(async () => (await complete(secret)).status).toBe(200);
  await page.reload();
  await row.getByRole("button", { name: "Pause" }).click();
  await row.getByRole("button", { name: "Resume" }).click();
  await expect(row).toContainText("active");
});

test("a known browser signs in while strangers try passwords", async ({ page, browser }) => {
  test.slow(); // many attempts
  await page.goto(basegate("account", "invite", "mia@example.org").trim());
  await page.getByLabel(/^New password/).fill(password);
  await page.getByLabel("Confirm new password").fill(password);
  await page.getByRole("button", { name: "Set password" }).click();
  await expect(page).toHaveURL(/dashboard/);
  await page.getByText("mia@example.org", { exact: true }).click();
  await page.getByRole("button", { name: "Sign out" }).click();

  const stranger = await (await browser.newContext({ baseURL: process.env.CONSOLE })).newPage();
  await stranger.goto("/sign-in");
  for (let i = 0; i < 15; i++) { // the delay doubles, until it is longer than an attempt takes here
    await stranger.getByLabel("E-mail").fill("mia@example.org");
    await stranger.getByLabel("Password").fill(`a wrong password ${i}`);
    await stranger.getByLabel("Password").press("Enter"); // a click waits for frames
    await expect(stranger.getByLabel("Password")).toHaveValue(""); // the page that reports the failure
    if ((await stranger.getByRole("alert").textContent()).includes("Too many attempts have failed")) break;
  }
  await expect(stranger.getByRole("alert")).toContainText("Too many attempts have failed");
  await stranger.context().close();
  await signIn(page, "mia@example.org", password);
});

test("signing out everywhere ends all sessions", async ({ page, browser }) => {
  await page.goto("/sign-in");
  await checkPage(page, "sign-in");
  await signIn(page);
  const otherBrowser = await (await browser.newContext()).newPage();
  await otherBrowser.goto(new URL("/sign-in", process.env.CONSOLE).href);
  await otherBrowser.getByLabel("E-mail").fill(process.env.EMAIL);
  await otherBrowser.getByLabel("Password").fill(process.env.PASSWORD);
  await otherBrowser.keyboard.press("Enter");
  await expect(otherBrowser).toHaveURL(/dashboard/);
  await page.getByText(process.env.EMAIL, { exact: true }).click();
  await page.getByRole("link", { name: "Account" }).click();
  await checkPage(page, "account");
  await page.getByRole("button", { name: "Sign out everywhere" }).click();
  await expect(page).toHaveURL(/sign-in/);
  await otherBrowser.reload();
  await expect(otherBrowser).toHaveURL(/sign-in/);
  await otherBrowser.context().close();
});

test("a chosen theme is remembered, and the system's is followed at once", async ({ page }) => {
  const ground = { light: "rgb(251, 251, 249)", dark: "rgb(22, 23, 26)" };
  const theme = page.getByRole("combobox", { name: "Theme" });
  const shows = (scheme) => expect(page.locator("html")).toHaveCSS("background-color", ground[scheme]);
  await page.emulateMedia({ colorScheme: "light" });
  await page.goto("/sign-in");
  await expect(theme).toHaveValue("");
  await shows("light");
  await page.emulateMedia({ colorScheme: "dark" });
  await shows("dark");
  await theme.selectOption("Light theme");
  await shows("light");
  await page.reload();
  await expect(theme).toHaveValue("light");
  await shows("light");
  await expectAccessible(page);
  await theme.selectOption("System theme");
  await shows("dark");
  await page.reload();
  await expect(theme).toHaveValue("");
  await shows("dark");
});
