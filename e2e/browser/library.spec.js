// The library of saved prompts: folders, tags, copies and versions.
import { boxOf, checkPage, expect, signIn, test } from "./console.js";
import { expectText, open, prompt } from "./workbench.js";

test("saved prompts are in folders with tags, and a copy leaves the original as it was saved", async ({ page }) => {
  await signIn(page);
  await open(page);
  const save = async (name, text) => {
    await page.getByRole("button", { name: "New", exact: true }).click();
    await prompt(page).fill(text);
    await page.locator("#name").fill(name);
    await page.getByRole("button", { name: "Save", exact: true }).click();
    await expect(page.locator("#saved-status")).toHaveText(/^Saved \d\d:\d\d$/);
  };
  page.on("dialog", (dialog) => dialog.accept());
  await save("Alone", "Of no folder");
  await save("Poems/Ode #draft", "An ode");
  await save("Poems/Sonnet #done", "A sonnet");
  await page.getByText("Open", { exact: true }).click();
  const folder = page.locator("#saved details").filter({ hasText: "Poems (2)" });
  await expect(folder.locator("li > button:first-child")).toHaveText(["Sonnet", "Ode"]);
  await expect(page.locator("#saved > li > button", { hasText: "Alone" })).toBeVisible();
  await checkPage(page, "workbench-library");
  await folder.getByRole("button", { name: "#draft" }).click();
  await expect(page.locator("#saved").getByRole("button", { name: "Sonnet", exact: true })).toHaveCount(0);
  await page.locator("#saved").getByRole("button", { name: "Ode", exact: true }).click();
  await expectText(page, "An ode");

  await prompt(page).fill("An ode, changed");
  await page.getByRole("button", { name: "Save a copy" }).click();
  await expect(page.locator("#name")).toHaveValue("Poems/Ode (copy) #draft");
  await expect(page.locator("#saved-status")).toHaveText(/^Saved \d\d:\d\d$/);
  await page.getByText("Open", { exact: true }).click();
  await expect(page.locator("#saved").getByRole("button", { name: "Ode (copy)", exact: true })).toHaveAttribute("aria-current", "true");
  await page.locator("#saved").getByRole("button", { name: "Ode", exact: true }).click();
  await expectText(page, "An ode");
  await page.getByText("Open", { exact: true }).click();
  for (const title of ["Ode", "Ode (copy)"]) await page.locator("#saved").getByRole("button", { name: `Delete ${title}`, exact: true }).click();
  await expect(page.locator("#saved").getByText("No matching prompts.")).toBeVisible();
});

test("each save makes a version, of which an earlier one opens and becomes the latest, and a copy says what it is from", async ({ page }) => {
  await signIn(page);
  await open(page);
  page.on("dialog", (dialog) => dialog.accept());
  const name = `Versioned ${Date.now()}`;
  const versions = page.locator("#versions");
  const version = (n) => versions.getByRole("button", { name: `Version ${n}`, exact: true });
  const save = async (text) => {
    if (text) await prompt(page).fill(text);
    await page.getByRole("button", { name: "Save", exact: true }).click();
    await expect(page.locator("#saved-status")).toHaveText(/^Saved \d\d:\d\d$/);
  };
  await page.locator("#versions-panel > summary").click();
  await expect(page.locator("#versions-status")).toHaveText("Save the prompt first.");
  await page.locator("#name").fill(name);
  await save("The first text");
  await expect(version(1)).toHaveAttribute("aria-current", "true");
  await save("The second text");
  await save("The third text");
  await expect(versions.getByRole("listitem")).toHaveText([/^Version 3latest · /, /^Version 2(?!latest)/, /^Version 1(?!latest)/]);
  await checkPage(page, "workbench-versions");

  await version(1).click();
  await expectText(page, "The first text");
  await expect(page.locator("#saved-status")).toHaveText(/^Version 1, saved .*\. Save makes it the latest\.$/);
  await expect(version(1)).toHaveAttribute("aria-current", "true");
  await version(3).click();
  await expectText(page, "The third text");
  await version(1).click();
  await expectText(page, "The first text");
  await save();
  await expect(version(4)).toHaveAttribute("aria-current", "true");
  await versions.getByRole("button", { name: "Delete version 2" }).click();
  await expect(versions.getByRole("listitem")).toHaveCount(3);
  await expect(version(2)).toHaveCount(0);
  await page.reload();
  await expectText(page, "The first text");

  const original = page.url();
  await page.getByRole("button", { name: "Save a copy" }).click();
  await expect(page.locator("#name")).toHaveValue(`${name} (copy)`);
  await expect(page.locator("#saved-status")).toHaveText(/^Saved \d\d:\d\d$/);
  await expect(page).not.toHaveURL(original);
  await page.locator("#versions-panel > summary").click();
  await expect(page.locator("#origin")).toHaveText(`A copy of “${name}”`);
  await checkPage(page, "workbench-copy");
  await page.locator("#origin a").click();
  await expect(page).toHaveURL(original);
  await expectText(page, "The first text");
});

test("one panel of the toolbar is open at a time, over the prompt, until Escape or a click outside", async ({ page }) => {
  await signIn(page);
  await open(page);
  const place = await boxOf(prompt(page));
  const versions = page.getByText("Each save makes a version.");
  await page.getByText("Open", { exact: true }).click();
  await expect(page.locator("#saved-search")).toBeVisible();
  await page.locator("#versions-panel > summary").click();
  await expect(versions).toBeVisible();
  await expect(page.locator("#saved-search")).toBeHidden();
  expect(await boxOf(prompt(page))).toEqual(place);
  await page.locator("#name").click(); // a part of the toolbar
  await expect(versions).toBeVisible();
  await page.keyboard.press("Escape");
  await expect(versions).toBeHidden();
  await expect(page.locator("#versions-panel > summary")).toBeFocused();
  await page.keyboard.press("Enter");
  await expect(versions).toBeVisible();
  await page.locator("#model").click();
  await expect(versions).toBeHidden();
});
