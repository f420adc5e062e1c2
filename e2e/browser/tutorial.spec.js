import { expect, expectAccessible, expectNoOverflow, checkPage, signIn, test } from "./console.js";

test("every page of the tutorial is public and links to the next", async ({ page }) => {
  await page.goto("/tutorial");
  await expect(page).toHaveURL(/\/tutorial\/overview$/);
  for (let n = 0; ; n++) {
    await expect(page.locator("article h1")).toHaveCount(1);
    const next = page.locator("a[rel=next]");
    const last = (await next.count()) === 0;
    if (n === 0 || last) await checkPage(page, `tutorial-${n}`); // the pages have the same styles
    else {
      await expectNoOverflow(page, `tutorial-${n}`);
      await expectAccessible(page);
    }
    if (last) break;
    const path = await next.getAttribute("href");
    await next.press("Enter"); // a click waits for frames, of which a loaded machine may draw none
    await page.waitForURL(`**${path}`);
    expect(n).toBeLessThan(30);
  }
});

test("the tutorial can be searched, and its snippets copied", async ({ page, context }) => {
  await context.grantPermissions(["clipboard-read", "clipboard-write"]);
  await signIn(page);
  await page.getByRole("link", { name: "Tutorial", exact: true }).click();
  await expect(page.locator("article")).toContainText(`${process.env.CONSOLE.replace(/\/$/, "")}/v1`);
  await page.getByRole("button", { name: "Copy" }).nth(1).click();
  await expect.poll(() => page.evaluate(() => navigator.clipboard.readText())).toContain('"model": "llama-8b"');

  await page.getByLabel("Search").fill("token ids");
  await page.keyboard.press("Enter");
  await page.getByRole("link", { name: /Token ids/ }).first().click();
  await expect(page).toHaveURL(/\/tutorial\/prompts#token-ids/);
});
