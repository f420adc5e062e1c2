// The library of saved prompts: folders, tags and copies.
import { checkPage, expect, signIn, test } from "./console.js";
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
