// The pictures of the documentation. From the repository's root, after make build:
//   SCREENSHOTS=$PWD/docs/pictures e2e/browser/run pictures.spec.js
import { expect, signIn, test } from "./console.js";

test.use({ colorScheme: "light" });

test("the workbench with a completion and the alternatives of a token", async ({ page }) => {
  test.skip(!process.env.SCREENSHOTS, "SCREENSHOTS is not set");
  await signIn(page);
  await page.setViewportSize({ width: 1280, height: 900 });
  await page.goto("/workbench");
  await expect(page.locator("#bench[data-ready]")).toBeAttached();
  await page.getByLabel("Prompt", { exact: true }).fill("Once upon a time");
  for (const [name, value] of Object.entries({ max_tokens: 40, seed: 4, temperature: 1 })) {
    await page.locator(`#p-${name}`).fill(String(value));
  }
  await page.getByRole("button", { name: "Generate" }).click();
  await expect(page.locator("#progress")).toHaveText(/\d+ prompt \+ \d+ completion tokens/);
  await page.locator("#columns .column").getByRole("option").nth(8).click();
  await expect(page.locator("#token .alternatives button").first()).not.toContainText("⟨"); // a text, not an id
  await page.evaluate(() => scrollTo(0, 0));
  // Without the header, and as wide as the content, which may be wider than the window.
  const [top, width] = await page.evaluate(() => [document.querySelector("main").offsetTop, document.documentElement.scrollWidth]);
  await page.screenshot({ path: `${process.env.SCREENSHOTS}/workbench.png`, fullPage: true, clip: { x: 0, y: top, width, height: 800 } });
});
