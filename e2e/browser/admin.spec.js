import { expectAccessible, basegate, expect, checkPage, signIn, test } from "./console.js";

test("a request for access becomes an account", async ({ page }) => {
  await page.goto("/sign-in");
  await page.getByRole("link", { name: "Request access" }).click();
  await checkPage(page, "request-access");
  await page.getByLabel("E-mail").fill("bea@example.org");
  await page.getByLabel("Name").fill("Bea");
  await page.getByLabel("What will you use the models for?").fill("Measure how surprised base models are by poems.");
  await page.getByRole("button", { name: "Send request" }).click();
  await expect(page.getByRole("heading", { name: "Request sent" })).toBeVisible();
  await expectAccessible(page);

  await signIn(page);
  await page.getByRole("link", { name: "Administration" }).click();
  await page.getByRole("link", { name: "Accounts" }).click();
  await checkPage(page, "admin-accounts");
  const request = page.getByRole("row", { name: /bea@example\.org/ });
  await request.getByText("Budgets and role").click();
  await request.getByLabel(/Tokens per month/).first().fill("2M");
  await checkPage(page, "admin-approve");
  await page.getByRole("button", { name: "Approve bea@example.org" }).click();
  const invitation = await page.locator("#invitation").textContent();
  await checkPage(page, "admin-invited");
  await page.goto("/");
  await page.getByText(process.env.EMAIL, { exact: true }).click();
  await page.getByRole("button", { name: "Sign out" }).click();
  await expect(page.getByRole("heading", { name: "Sign in" })).toBeVisible();
  await page.goto(invitation);
  await expect(page.getByText("bea@example.org")).toBeVisible();
});

test("an administrator changes caps, disables an account, and sees models and the audit log", async ({ page }) => {
  basegate("account", "create", "cyd@example.org", "--name", "Cyd", "--monthly-budget", "1000000");
  basegate("key", "create", "--account", "cyd@example.org", "--name", "cluster", "--monthly-budget", "400000");
  await signIn(page);
  await page.goto("/admin/accounts");
  await page.getByRole("link", { name: "cyd@example.org" }).click();
  await expect(page.getByRole("region", { name: "Changes" }).getByRole("row", { name: /create key/ })).toContainText("cluster");
  await checkPage(page, "admin-account");
  await page.getByLabel("Tokens per month", { exact: true }).fill("300k");
  await page.getByRole("button", { name: "Save" }).click();
  await expect(page.getByRole("alert")).toContainText("lower or revoke these first");
  await page.getByText("Disable account…").click();
  await page.getByRole("button", { name: "Yes, disable" }).click();
  await expect(page.getByText("disabled", { exact: true })).toBeVisible();

  await page.getByRole("link", { name: "Models and backends" }).click();
  await checkPage(page, "admin-models");
  await page.getByRole("link", { name: "Audit log" }).click();
  await expect(page.getByRole("row", { name: /disable account/ })).toContainText(process.env.EMAIL);
  await checkPage(page, "admin-audit");
  await page.getByLabel("Action").selectOption("create key");
  await page.getByLabel("Search").fill("CLUSTER");
  await page.getByRole("button", { name: "Show" }).click();
  await expect(page).toHaveURL(/q=CLUSTER/);
  await expect(page.getByText("disable account", { exact: true }).and(page.locator("td"))).toHaveCount(0);
  await page.getByRole("row", { name: /create key/ }).first().getByRole("link", { name: "cluster" }).click();
  await expect(page.getByRole("heading", { name: "cluster" })).toBeVisible();
});

test("feedback is sent from a dialog on any page", async ({ page }) => {
  await signIn(page);
  await page.goto("/usage");
  await page.getByRole("banner").getByRole("link", { name: "Feedback" }).click();
  const dialog = page.getByRole("dialog", { name: "Feedback" });
  await expect(dialog).toBeVisible();
  await expectAccessible(page);
  await page.keyboard.press("Escape");
  await expect(dialog).toBeHidden();
  await page.getByRole("banner").getByRole("link", { name: "Feedback" }).click();
  await dialog.getByLabel("What works").fill("The chart is good.\nMore colours, please.");
  await dialog.getByLabel("Request ID").fill("req_123");
  await dialog.getByRole("button", { name: "Send" }).click();
  await expect(page).toHaveURL(/\/usage$/);
  await expect(page.getByRole("status")).toContainText("Thank you for the feedback.");
  await page.goto("/feedback");
  await checkPage(page, "feedback");
  await page.goto("/admin/feedback");
  const message = page.getByRole("article").filter({ hasText: "The chart is good" });
  await expect(message).toContainText("req_123");
  await message.getByLabel("Reply").fill("Thank you. Six colours are in.");
  await message.getByLabel("Status").selectOption("done");
  await message.getByRole("button", { name: "Save" }).click();
  await expect(page.getByRole("status").first()).toContainText(`${process.env.EMAIL} sees the reply in the console`);
  await expect(message.locator(".tag")).toHaveText("done");
  await checkPage(page, "admin-feedback");
  await page.getByLabel("Status").first().selectOption("open");
  await expect(page).toHaveURL(/status=open/);
  await expect(page.getByText("The chart is good")).toBeHidden();

  await page.goto("/dashboard");
  await page.getByRole("link", { name: "Read the reply" }).click();
  await expect(page.getByRole("article")).toContainText("Six colours are in.");
  await checkPage(page, "feedback-replied");
  await page.goto("/dashboard");
  await expect(page.getByText("has replied to your feedback")).toBeHidden();
});

test("pages are small, load within a second with MEASURE=1, and the keyboard reaches the skip link", async ({ page }) => {
  await signIn(page);
  for (const path of ["/dashboard", "/usage", "/usage/requests", "/keys/new", "/account", "/admin/accounts", "/admin/models", "/admin/audit", "/workbench", "/tutorial/overview", "/tutorial/api", "/tutorial?q=budget", "/sign-in"]) {
    let bytes = 0;
    const count = async (response) => { bytes += (await response.body().catch(() => "")).length; };
    page.on("response", count);
    await page.goto(path, { waitUntil: "networkidle" });
    page.off("response", count);
    expect(bytes, path).toBeLessThan(300_000);
    if (!process.env.MEASURE) continue; // a time depends on the machine
    const ready = () => page.evaluate(() => performance.getEntriesByType("navigation")[0].domInteractive);
    let fastest = await ready();
    for (let n = 0; n < 9 && fastest >= 1000; n++) { // a loaded machine is not always slow
      await page.goto(path);
      fastest = Math.min(fastest, await ready());
    }
    expect(fastest, path).toBeLessThan(1000);
  }
  await page.goto("/dashboard");
  await page.keyboard.press("Tab");
  await expect(page.getByRole("link", { name: "Skip to content" })).toBeFocused();
});
