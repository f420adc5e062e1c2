import { boxOf, checkPage, complete, expect, hide, signIn, test } from "./console.js";

test("the overview draws charts, also on a narrow screen, and has tables with the same figures", async ({ page }) => {
  for (let i = 0; i < 3; i++) await (await complete(process.env.API_KEY)).text();
  await complete(process.env.API_KEY, { model: "none" });
  await signIn(page);
  await page.getByRole("link", { name: "Administration" }).click();
  await expect(page).toHaveURL(/\/admin\/overview/);
  await expect(page.locator("#plot-requests canvas")).toBeVisible();
  await expect(page.locator(".plot canvas")).toHaveCount(6);
  const legend = page.locator("#plot-requests .u-legend");
  await expect(legend, "the latest values").toContainText(/latest.*all\s*[\d.]+\/s/s);
  await expect(page.locator("#overview-rows")).toContainText("llama-8b");
  await page.getByText("The charts as a table").click();
  await expect(page.locator("#overview-times tbody tr").first()).toBeVisible();
  await checkPage(page, "admin-overview");
  await page.setViewportSize({ width: 360, height: 740 });
  await expect.poll(() => page.evaluate(() => document.documentElement.scrollWidth - innerWidth)).toBeLessThanOrEqual(0);
  await expect.poll(() => page.locator("#plot-requests canvas").evaluate((c) => c.getBoundingClientRect().right <= innerWidth)).toBe(true);

  await page.getByLabel("Period").selectOption("day");
  await expect(page).toHaveURL(/period=day/);
  await page.waitForLoadState("load"); // the page's script has run
  await page.getByLabel("Model or backend").selectOption("llama-8b");
  await expect(page).toHaveURL(/series=llama-8b/);
  await expect(page.locator("#plot-requests .u-legend")).toContainText("llama-8b");
});

test("the charts have a 24 h clock, one zoom that a refresh keeps, and the values at the cursor", async ({ page }) => {
  await (await complete(process.env.API_KEY)).text();
  await page.clock.install();
  await signIn(page);
  await page.goto("/admin/overview");
  const plot = page.locator("#plot-requests .u-over");
  const whole = page.getByRole("button", { name: "Whole period" });
  await expect(whole).toBeDisabled();
  await page.evaluate(() => {
    const text = CanvasRenderingContext2D.prototype.fillText;
    window.drawn = [];
    CanvasRenderingContext2D.prototype.fillText = function (...args) { window.drawn.push(args[0]); return text.apply(this, args); };
  });
  const box = await boxOf(plot);
  await page.mouse.move(box.x + box.width * 0.2, box.y + 50);
  await page.mouse.down();
  await page.mouse.move(box.x + box.width * 0.6, box.y + 50, { steps: 5 });
  await expect(page.locator("#plot-queue .u-legend"), "the cursor of all charts").toContainText(/\d{4}, \d\d:\d\d:\d\d/);
  await page.mouse.up();
  await expect(whole).toBeEnabled();
  await expect.poll(() => page.evaluate(() => window.drawn)).toContainEqual(expect.stringMatching(/^\d\d:\d\d(:\d\d)?$/));
  expect((await page.evaluate(() => window.drawn)).filter((text) => /[ap]m/i.test(text))).toEqual([]);
  await page.mouse.move(0, 0);
  await expect(page.locator("#plot-queue .u-legend")).toContainText("latest, zoomed");
  const refreshed = page.waitForResponse("**/admin/overview");
  await page.clock.runFor(10_000);
  await refreshed;
  await expect(page.locator("#plot-queue .u-legend")).toContainText("latest, zoomed");
  await whole.click();
  await expect(whole).toBeDisabled();
  await expect(page.locator("#plot-queue .u-legend")).not.toContainText("zoomed");
});

test("the overview refreshes itself while it is visible, and says when it is out of date", async ({ page }) => {
  await page.clock.install();
  await signIn(page);
  await page.goto("/admin/overview");
  await expect(page.locator("#plot-requests canvas")).toBeVisible();
  let refreshes = 0;
  page.on("request", (r) => { if (r.url().includes("/admin/overview")) refreshes++; });
  const codes = page.locator("#overview-refusals");
  await complete("acs-bm-unknown");
  await expect(async () => {
    await page.clock.runFor(10_000);
    await expect(codes).toContainText("invalid_api_key", { timeout: 500 });
  }).toPass();

  await hide(page, true);
  const before = refreshes;
  await page.clock.runFor(60_000);
  expect(refreshes, "a hidden tab refreshes").toBe(before);
  await hide(page, false);
  await expect.poll(() => refreshes).toBeGreaterThan(before);

  await page.route("**/admin/overview*", (route) => route.abort());
  await page.clock.runFor(10_000);
  await expect(page.locator("#overview-updated")).toContainText("Not updated since");
  await page.unroute("**/admin/overview*");
  await page.clock.runFor(10_000);
  await expect(page.locator("#overview-updated")).toContainText("As of");

  await page.context().clearCookies();
  await page.clock.runFor(10_000);
  await expect(page.locator("#overview-updated")).toContainText("signed out");
});

test("the settings page shows what differs from the default", async ({ page }) => {
  await signIn(page);
  await page.goto("/admin/settings");
  await expect(page.getByRole("table").first()).toContainText(process.env.BASEGATE_TEST_ENGINE === "postgres" ? "database.url" : "database.path");
  await expect(page.getByRole("heading", { name: "Model llama-8b", exact: true })).toBeVisible();
  await page.getByText(/^Settings that have their default/).click();
  await checkPage(page, "admin-settings");
});
