// The keyboard alone, from the sign-in to an exported tree.
import { readFileSync } from "node:fs";
import { expect, test } from "./console.js";
import { expectText, prompt, setMinTokens } from "./workbench.js";

test("somebody without a pointer signs in, writes, branches, compares by the tree and exports it", async ({ page }) => {
  const press = async (...keys) => { for (const key of keys) await page.keyboard.press(key); };
  // tabTo presses Tab until an element has the focus.
  const tabTo = async (locator) => {
    for (let i = 0; i < 120 && !await locator.evaluate((el) => el === document.activeElement); i++) await press("Tab");
    await expect(locator).toBeFocused();
  };
  await page.goto("/sign-in");
  await tabTo(page.getByLabel("E-mail"));
  await page.keyboard.type(process.env.EMAIL);
  await press("Tab");
  await page.keyboard.type(process.env.PASSWORD);
  await press("Enter");
  await expect(page).toHaveURL(/dashboard/);
  await page.waitForLoadState("load");
  await press("g", "w");
  await expect(page.locator("#bench[data-ready]")).toBeAttached();
  await setMinTokens(page, 4);
  await tabTo(prompt(page));
  await page.keyboard.type("By the keyboard alone");
  const idle = async () => {
    await expect(page.locator("#progress")).toContainText("completion tokens");
    await expect(page.locator("#progress button")).toHaveCount(0);
  };
  await press("Control+Enter");
  await idle();
  await tabTo(page.locator("#tree [tabindex='0']"));
  await press("m", "Home", "Enter"); // marks the branch, goes to the prompt, and generates another one there
  await expect(page.locator("#tree li")).toHaveCount(3);
  await idle();
  await press("Control+k");
  await page.keyboard.type("export to a file");
  const downloading = page.waitForEvent("download");
  await press("Enter");
  const file = readFileSync(await (await downloading).path(), "utf8");
  const { nodes } = JSON.parse(file).document.tree;
  expect(nodes).toHaveLength(3);
  expect(nodes.filter(({ bookmarked }) => bookmarked)).toHaveLength(1);
  await expectText(page, /^By the keyboard alone/);
});
