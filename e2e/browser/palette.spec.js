import { addColdModel, basegate, expect, expectAccessible, expectNoOverflow, signIn, test } from "./console.js";
import { expectText } from "./workbench.js";

test("the command palette opens pages, keys, models and accounts by the keyboard alone", async ({ page }) => {
  basegate("account", "create", "palette@example.org");
  basegate("key", "create", "--account", process.env.EMAIL, "--name", "key of the palette");
  basegate("key", "create", "--account", "palette@example.org", "--name", "a stranger's key");
  await signIn(page);
  const dialog = page.getByRole("dialog", { name: "Go to" });
  const find = async (text) => {
    await page.waitForLoadState("load"); // the page's script has run
    await page.keyboard.press("Control+k");
    await expect(dialog.getByRole("combobox")).toBeFocused();
    await page.keyboard.type(text);
  };
  await find("key of the");
  await expect(dialog.getByRole("option")).toHaveCount(1);
  await expect(dialog.getByRole("option")).toHaveAttribute("aria-selected", "true");
  await expectAccessible(page);
  await expectNoOverflow(page, "palette");
  await page.keyboard.press("Enter");
  await expect(page.getByRole("heading", { name: "key of the palette" })).toBeVisible();

  await find("stranger");
  await expect(dialog.getByRole("status")).toHaveText("Nothing found.");
  await page.keyboard.press("Escape");
  await expect(dialog).toBeHidden();

  await find("palette@");
  await expect(dialog.getByRole("option").first()).toContainText("Account");
  await page.keyboard.press("Enter");
  await expect(page.getByRole("heading", { name: "palette@example.org" })).toBeVisible();

  await find("");
  await expect(dialog.getByRole("option").nth(1)).toBeVisible();
  const first = await dialog.getByRole("combobox").getAttribute("aria-activedescendant");
  await page.keyboard.press("ArrowDown");
  await expect(dialog.getByRole("combobox")).not.toHaveAttribute("aria-activedescendant", first);
  await page.keyboard.type("llama-405b");
  await page.keyboard.press("Enter");
  await expect(page).toHaveURL(/admin\/models#model-llama-405b/);
});

test("the palette finds saved prompts of the user's own and no accounts", async ({ page }) => {
  await page.goto(basegate("account", "invite", "pal@example.org").trim());
  await page.getByLabel(/^New password/).fill("a password for the browser");
  await page.getByLabel("Confirm new password").fill("a password for the browser");
  await page.getByRole("button", { name: "Set password" }).click();
  await expect(page).toHaveURL(/dashboard/);
  await page.goto("/workbench");
  await expect(page.locator("#bench[data-ready]")).toBeAttached();
  await page.getByLabel("Prompt", { exact: true }).fill("A poem");
  await page.locator("#name").fill("Ode to a token");
  await page.getByRole("button", { name: "Save", exact: true }).click();
  await expect(page.locator("#saved-status")).toHaveText(/^Saved \d\d:\d\d$/);
  await page.goto("/dashboard");
  await page.getByRole("button", { name: "Go to…" }).click();
  const dialog = page.getByRole("dialog", { name: "Go to" });
  await page.keyboard.type("ode token");
  await expect(dialog.getByRole("option")).toContainText("Saved prompt");
  const { items } = await (await page.request.get("/console/api/palette")).json();
  expect(items.map((item) => item.kind)).not.toContain("Account");
  expect(items.map((item) => item.path).filter((path) => path.startsWith("/admin"))).toEqual([]);
  await dialog.getByRole("option").click();
  await expectText(page, "A poem");
});

test("shortcuts are listed, work outside fields, and can be switched off", async ({ page }) => {
  await signIn(page);
  await page.keyboard.press("?");
  const sheet = page.getByRole("dialog", { name: "Keyboard shortcuts" });
  await expect(sheet).toBeVisible();
  await expect(sheet).toContainText("Requests");
  await expectNoOverflow(page, "shortcuts");
  for (const colorScheme of ["light", "dark"]) {
    await page.emulateMedia({ colorScheme });
    await expectAccessible(page);
  }
  await page.keyboard.press("Escape");
  await page.keyboard.press("g");
  await page.keyboard.press("r");
  await expect(page).toHaveURL(/usage\/requests/);
  await page.waitForLoadState("load"); // the page's script has run
  await page.keyboard.press("/");
  await expect(page.getByLabel("Search")).toBeFocused();
  await page.keyboard.type("g?d"); // in a field, keys are text
  await expect(page.getByLabel("Search")).toHaveValue("g?d");
  await expect(sheet).toBeHidden();

  await page.getByRole("banner").getByText(process.env.EMAIL, { exact: true }).click();
  await page.getByRole("button", { name: "Keyboard shortcuts" }).click();
  await sheet.getByRole("checkbox").uncheck();
  await sheet.getByRole("button", { name: "Close" }).click();
  await page.reload();
  await page.keyboard.press("?");
  await page.keyboard.press("Control+k"); // is no shortcut of a single key
  await expect(page.getByRole("dialog", { name: "Go to" })).toBeVisible();
  await expect(sheet).toBeHidden();
});

test("shortcuts work at once after the sheet was closed, while the focus is still in it", async ({ page }) => {
  await signIn(page);
  const reopened = await page.evaluate(() => {
    const sheet = document.getElementById("shortcuts");
    sheet.showModal();
    sheet.close();
    sheet.querySelector("input").dispatchEvent(new KeyboardEvent("keydown", { key: "?", bubbles: true }));
    return sheet.open;
  });
  expect(reopened).toBe(true);
});

test("the palette and the sheet are there on a phone", async ({ page }) => {
  await signIn(page);
  await page.setViewportSize({ width: 390, height: 844 });
  await page.getByText("Menu", { exact: true }).click();
  await page.getByRole("button", { name: "Go to…" }).click();
  await expect(page.getByRole("combobox")).toBeFocused();
  await page.getByRole("combobox").fill("audit");
  await page.locator("#palette").getByRole("option").first().click();
  await expect(page).toHaveURL(/admin\/audit/);
});

test("the palette does things too: it makes a key, warms a model, and switches the workbench's", async ({ page }) => {
  const remove = await addColdModel();
  try {
    await signIn(page);
    await expect(async () => { // the gateway has read its configuration again
      await page.goto("/dashboard");
      await expect(page.locator("#live-models")).toContainText("cold-8b", { timeout: 500 });
    }).toPass();
    const dialog = page.getByRole("dialog", { name: "Go to" });
    const find = async (text) => {
      await page.waitForLoadState("load");
      await page.keyboard.press("Control+k");
      await page.keyboard.type(text);
    };
    await find("create key");
    await expect(dialog.getByRole("option").first()).toContainText("Action");
    await page.keyboard.press("Enter");
    await expect(page).toHaveURL(/keys\/new/);
    await page.goto("/usage");
    await find("warm cold");
    await expect(dialog.getByRole("option").first()).toContainText("Warm cold-8b");
    await page.keyboard.press("Enter");
    await expect(page.locator("#done")).toHaveText("cold-8b is starting.");
    await page.goto("/workbench");
    await expect(page.locator("#bench[data-ready]")).toBeAttached();
    await find("switch trinity");
    await expect(dialog.getByRole("option").first()).toContainText("Switch model to trinity-base");
    await page.keyboard.press("Enter");
    await expect(page.locator("#model")).toHaveValue("trinity-base");
  } finally {
    remove();
  }
});
