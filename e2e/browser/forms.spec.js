import { expectAccessible, basegate, expect, expectNoOverflow, signIn, test } from "./console.js";

const password = "a password for the browser";

async function newAccount(page, email) {
  await page.goto(basegate("account", "invite", email).trim());
  await page.getByLabel("New password", { exact: false }).first().fill(password);
  await page.getByLabel("Confirm new password").fill(password);
  await page.getByRole("button", { name: "Set password" }).click();
  await expect(page).toHaveURL(/dashboard/);
}

const keysOf = (email) => JSON.parse(basegate("key", "list", "--json")).filter((key) => key.account === email);

test("reloading after a key or an invitation was created does not create another", async ({ page }) => {
  await newAccount(page, "reload@example.org");
  await page.goto("/keys/new");
  await page.getByLabel("Name").fill("only-one");
  await page.getByRole("button", { name: "Create key" }).click();
  await expect(page.locator("#secret")).toHaveText(/^acs-bm-/);
  await expect(page).toHaveURL(/\/once\//);
  await expectNoOverflow(page, "key-created");
  expect((await page.context().cookies()).map((cookie) => cookie.name)).not.toContain("basegate-secret");
  await page.reload();
  await expect(page.getByRole("heading", { name: "This was shown before" })).toBeVisible();
  expect(keysOf("reload@example.org")).toHaveLength(1);

  await page.context().clearCookies();
  await signIn(page);
  await page.goto("/admin/accounts");
  await page.getByLabel("E-mail").fill("invited-once@example.org");
  await page.getByRole("button", { name: "Create invitation" }).click();
  const invitation = await page.locator("#invitation").textContent();
  await page.reload();
  await expect(page.getByRole("heading", { name: "This was shown before" })).toBeVisible();
  const response = await page.request.get(invitation);
  expect(response.status()).toBe(200); // a second invitation would have replaced it
});

test("two tabs show the secrets of their own keys", async ({ page, context }) => {
  await newAccount(page, "tabs@example.org");
  const pages = [];
  for (const name of ["first", "second"]) {
    const response = await page.request.post("/keys", { form: { name }, maxRedirects: 0, headers: { "Sec-Fetch-Site": "same-origin" } });
    expect(response.status()).toBe(303);
    pages.push([name, response.headers().location]);
  }
  const shown = [];
  for (const [name, path] of pages) {
    const tab = await context.newPage();
    await tab.goto(path);
    await expect(tab.getByRole("heading", { name: `Key “${name}” created` })).toBeVisible();
    shown.push(await tab.locator("#secret").textContent());
  }
  expect(new Set(shown).size).toBe(2);
});

test("a form confirms what was done, once", async ({ page }) => {
  await newAccount(page, "done@example.org");
  basegate("key", "create", "--account", "done@example.org", "--name", "laptop");
  await page.goto("/dashboard");
  await page.getByRole("button", { name: "Pause laptop" }).click();
  await expect(page.locator("#done")).toHaveText("Key laptop paused.");
  await expectAccessible(page);
  await page.reload();
  await expect(page.locator("#done")).toHaveCount(0);
  await expect(page.getByRole("button", { name: "Resume laptop" })).toBeVisible();
});

test("an error marks its field and keeps what was typed", async ({ page }) => {
  await newAccount(page, "typed@example.org");
  await page.goto("/keys/new");
  await page.getByLabel("Name").fill("my study");
  await page.getByRole("textbox", { name: "Tokens per day" }).fill("a lot");
  await page.getByLabel("Expires on").fill("2100-05-06");
  await page.getByRole("checkbox", { name: "trinity-base" }).check();
  await page.getByRole("button", { name: "Create key" }).click();
  await expect(page.getByRole("alert")).toContainText("is not a budget");
  await expect(page.getByRole("textbox", { name: "Tokens per day" })).toHaveAttribute("aria-invalid", "true");
  await expect(page.getByRole("textbox", { name: "Tokens per day" })).toHaveAccessibleDescription(/is not a budget/);
  await expect(page.locator("[aria-invalid]")).toHaveCount(1);
  await expect(page.getByLabel("Name")).toHaveValue("my study");
  await expect(page.getByRole("textbox", { name: "Tokens per day" })).toHaveValue("a lot");
  await expect(page.getByLabel("Expires on")).toHaveValue("2100-05-06");
  await expect(page.getByRole("checkbox", { name: "trinity-base" })).toBeChecked();
  await expectAccessible(page);
  await page.getByRole("textbox", { name: "Tokens per day" }).fill("1k");
  await page.getByRole("button", { name: "Create key" }).click();
  await expect(page.getByRole("heading", { name: "Key “my study” created" })).toBeVisible();
  await page.goto("/dashboard");
  await page.getByRole("link", { name: "Edit my study" }).click();
  await page.getByLabel("Name").fill("a better name");
  await page.getByLabel("Tokens per month", { exact: true }).fill("-1");
  await page.getByRole("button", { name: "Save" }).click();
  await expect(page.getByLabel("Tokens per month", { exact: true })).toHaveAttribute("aria-invalid", "true");
  await expect(page.getByLabel("Name")).toHaveValue("a better name");
});

test("a form whose session has ended goes on after signing in over the page", async ({ page }) => {
  await newAccount(page, "expired@example.org");
  await page.goto("/keys/new");
  await page.getByLabel("Name").fill("not lost");
  await page.getByLabel("Tokens per month", { exact: true }).fill("12k");
  const session = (await page.context().cookies()).find((cookie) => cookie.name === "basegate");
  await page.context().clearCookies({ name: session.name });
  await page.getByRole("button", { name: "Create key" }).click();
  const dialog = page.getByRole("dialog", { name: "Your session has ended" });
  await expect(dialog).toBeVisible();
  await expectAccessible(page);
  await dialog.getByLabel("Password").fill("a wrong password");
  await dialog.getByRole("button", { name: "Sign in and continue" }).click();
  await expect(dialog.getByRole("alert")).toContainText("Wrong e-mail address or password.");
  await dialog.getByLabel("Password").fill(password);
  await dialog.getByRole("button", { name: "Sign in and continue" }).click();
  await expect(page.getByRole("heading", { name: "Key “not lost” created" })).toBeVisible();
  expect(keysOf("expired@example.org").map((key) => key.name)).toEqual(["not lost"]);

  await page.goto("/keys/new");
  await page.getByLabel("Name").fill("still here");
  await page.context().clearCookies({ name: session.name });
  await page.getByRole("button", { name: "Create key" }).click();
  await dialog.getByRole("button", { name: "Cancel" }).click();
  await expect(page.getByLabel("Name")).toHaveValue("still here");
});

test("a form is sent although the page refreshes itself while the session is checked", async ({ page }) => {
  basegate("key", "create", "--account", process.env.EMAIL, "--name", "sent while refreshed");
  await page.clock.install();
  await signIn(page);
  await page.goto("/dashboard");
  const row = page.getByRole("row", { name: /sent while refreshed/ });
  await expect(row).toContainText("active");
  let check;
  const checking = new Promise((resolve) => { check = resolve; });
  await page.route("**/console/api/session", async (route) => { await checking; await route.continue(); });
  const asked = page.waitForRequest("**/console/api/session");
  await row.getByRole("button", { name: "Pause" }).press("Enter");
  await asked;
  const refreshed = page.waitForResponse((r) => r.url().endsWith("/dashboard"));
  await page.clock.runFor(10_000);
  await (await refreshed).finished();
  await page.clock.runFor(100);
  check();
  await expect(row).toContainText("paused");
});
