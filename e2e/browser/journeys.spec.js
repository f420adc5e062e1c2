// Three users from the beginning to the end of what they came for.
import { readFileSync } from "node:fs";
import { addColdModel, basegate, complete, expect, signIn, test } from "./console.js";

const password = "a password for the browser";

test("newcomer: invitation, password, key, first answer, usage", async ({ page, browser }) => {
  const administrator = await (await browser.newContext({ baseURL: process.env.CONSOLE })).newPage();
  await signIn(administrator);
  await administrator.goto("/admin/accounts");
  await administrator.getByLabel("E-mail").fill("first.day@example.org");
  await administrator.getByRole("button", { name: "Create invitation" }).click();
  const invitation = await administrator.locator("#invitation").textContent();
  await administrator.context().close();

  await page.goto(invitation);
  await page.getByLabel(/^New password/).fill(password);
  await page.getByLabel("Confirm new password").fill(password);
  await page.getByRole("button", { name: "Set password" }).click();
  await expect(page.getByRole("heading", { name: "First steps" })).toBeVisible();
  await page.getByRole("link", { name: "Create a key" }).first().click();
  await page.getByLabel("Name").fill("first key");
  await page.getByRole("button", { name: "Create key" }).click();
  const secret = await page.locator("#secret").textContent();
  await page.getByRole("link", { name: "Back to the dashboard" }).click();
  await expect(page.getByText(secret)).toHaveCount(0);

  // The dashboard stays open while the program runs elsewhere.
  const answer = await (await complete(secret)).json();
  expect(answer.choices[0].text).not.toBe("");
  const row = page.getByRole("row", { name: /first key/ });
  await expect(row).toContainText(String(answer.usage.total_tokens), { timeout: 25_000 }); // without a reload
  await expect(page.getByRole("heading", { name: "First steps" })).toBeHidden();
  await page.getByRole("link", { name: "Usage", exact: true }).click();
  await expect(page.locator("dl").getByText(String(answer.usage.total_tokens), { exact: true }).first()).toBeVisible();
  await page.getByRole("link", { name: "Requests", exact: true }).click();
  await page.getByRole("link", { name: /^req_/ }).click();
  await expect(page.getByText(`${answer.usage.prompt_tokens} prompt + ${answer.usage.completion_tokens} completion tokens`)).toBeVisible();
});

test("researcher: prompt, branches, compare, export", async ({ page }) => {
  await signIn(page);
  await page.keyboard.press("g");
  await page.keyboard.press("w");
  await expect(page.locator("#bench[data-ready]")).toBeAttached();
  await page.getByLabel("Prompt", { exact: true }).fill("The old lighthouse keeper");
  for (const [name, value] of Object.entries({ max_tokens: 12, seed: 3, n: 2, temperature: 1 })) await page.locator(`#p-${name}`).fill(String(value));
  await page.getByRole("button", { name: "Generate" }).click();
  await expect(page.locator("#generate")).toBeEnabled();
  await expect(page.locator("#prompt .strip li:not(.head)")).toHaveCount(2);
  await page.locator("#prompt [data-i]").last().click();
  await page.locator("#p-n").fill("1");
  await page.locator("#token").getByRole("button", { name: /^Continue with/ }).first().click();
  await expect(page.locator("#generate")).toBeEnabled();
  await page.locator("#name").fill("The lighthouse");
  await page.getByRole("button", { name: "Save", exact: true }).click();
  await expect(page.locator("#saved-status")).toHaveText(/^Saved \d\d:\d\d$/);
  await page.getByText("Copy and export").click();
  const [file] = await Promise.all([page.waitForEvent("download"), page.getByRole("button", { name: "JSON file" }).click()]);
  expect(JSON.stringify(JSON.parse(readFileSync(await file.path(), "utf8")))).toContain("The old lighthouse keeper");
  await page.getByLabel("Token ids in place of the text").check();
  await page.getByRole("button", { name: "JSON", exact: true }).click();
  const copied = JSON.parse(await page.locator("#copied").textContent());
  expect(copied).toMatchObject({ model: "llama-8b", max_tokens: 12, seed: 3, n: 1 });
  const again = await complete(process.env.API_KEY, copied); // what was copied is a request that runs
  expect(again.status).toBe(200);
  expect((await again.json()).usage.prompt_tokens).toBe(copied.prompt.length);
});

test("operator: cold model, warm, requests, paused key, audit log", async ({ page }) => {
  const removeColdModel = await addColdModel();
  try {
    basegate("account", "create", "runner@example.org");
    const secret = basegate("key", "create", "--account", "runner@example.org", "--name", "nightly run").trim();
    await signIn(page);
    await expect(async () => {
      await page.goto("/admin/models");
      await expect(page.getByRole("heading", { name: /cold-8b/ })).toBeVisible({ timeout: 500 });
    }).toPass();
    const model = page.getByRole("region", { name: /^cold-8b/ });
    const status = model.getByRole("heading", { level: 2 }).locator(".tag");
    await expect(status).toHaveText("Cold");
    await model.getByRole("button", { name: "Warm cold-8b" }).click();
    await expect(status).toHaveText("Ready", { timeout: 30_000 });
    expect((await complete(secret, { model: "cold-8b", user: "night-7" })).status).toBe(200);
    await expect(model).toContainText("Last hour: 1 request");

    await page.goto("/usage/requests?account=all&model=cold-8b");
    const request = page.getByRole("row", { name: /night-7/ }).first();
    await expect(request).toContainText("runner@example.org");
    await expect(request).toContainText("nightly run");
    await page.goto("/admin/accounts");
    await page.getByRole("link", { name: "runner@example.org" }).click();
    await page.getByRole("button", { name: "Pause nightly run" }).click();
    await expect(page.getByRole("button", { name: "Resume nightly run" })).toBeVisible(); // the form's page, before another is opened
    await expect.poll(async () => (await complete(secret)).status).toBe(401);
    await page.goto("/admin/audit");
    await expect(page.getByRole("row", { name: /pause key nightly run/ })).toContainText(process.env.EMAIL);
    await page.goto("/admin/models");
    await model.getByRole("button", { name: "Stop cold-8b" }).click();
    await expect(status).toHaveText("Cold");
  } finally {
    removeColdModel();
  }
});
