import { addColdModel, checkPage, complete, expect, hide, signIn, test } from "./console.js";

let removeColdModel;
test.beforeAll(async () => { removeColdModel = await addColdModel(); });
test.afterAll(() => removeColdModel());

test("an operator warms, stops and books a model in place and sees what happens", async ({ page }) => {
  await signIn(page);
  await expect(async () => {
    await page.goto("/admin/models");
    await expect(page.getByRole("heading", { name: /cold-8b/ })).toBeVisible({ timeout: 500 });
  }).toPass();
  const model = page.getByRole("region", { name: /^cold-8b/ });
  const status = model.getByRole("heading", { level: 2 }).locator(".tag");
  await expect(status).toHaveText("Cold");
  await expect(page.getByRole("region", { name: /^llama-8b / })).toContainText("the gateway cannot start or stop it");
  await expect(page.getByRole("list", { name: "Settings of mock to check" }).first()).toContainText("generation_config.json");

  await model.getByRole("button", { name: "Warm cold-8b" }).click();
  await expect(page.getByRole("status").first()).toContainText("start requested");
  const log = model.getByRole("region", { name: "Log of box" });
  await expect(log).toContainText("loading weights of cold-8b"); // without a reload
  await expect(status).toHaveText("Ready");
  await expect(log).toContainText("starting → ready");
  await expect(model.getByRole("table").first()).toContainText("Healthy");
  await expect(model.getByRole("table").first(), "what vLLM says of its load").toContainText(/\d running, 0 waiting; cache: .* used, .* hits/);
  await checkPage(page, "admin-models-live");

  const requests = async () => Number((await model.textContent()).match(/Last hour: (\d+) request/)?.[1] ?? 0);
  const earlier = await requests();
  const secret = "a prompt that no page of the operator shows";
  expect((await complete(process.env.API_KEY, { model: "cold-8b", prompt: secret })).status).toBe(200);
  await expect.poll(requests).toBe(earlier + 1);
  await expect(model).toContainText(/Last hour: \d+ requests?, 0 errors/);
  expect(await page.content()).not.toContain(secret);

  await model.getByText("Book a warm window…").click();
  const [from, to] = [model.getByLabel("From, UTC"), model.getByLabel("To, UTC")];
  await from.fill("2101-01-02T18:00");
  await to.fill("2101-01-02T17:00");
  await model.getByRole("button", { name: "Book window for cold-8b" }).click();
  await expect(model.getByRole("alert")).toContainText("must end after it begins");
  await expect(from).toHaveValue("2101-01-02T18:00");
  await to.fill("2101-01-02T20:00");
  await model.getByRole("button", { name: "Book window for cold-8b" }).click();
  await expect(page.getByRole("status").first()).toContainText("2 Jan 2101, 18:00 to 2 Jan 2101, 20:00 UTC");
  await expect(model.locator(".booked")).toContainText("2 Jan 2101, 18:00 to 2 Jan 2101, 20:00 UTC"); // in the zone in which it was entered
  await model.getByRole("button", { name: /^Remove the window/ }).click(); // listed once the gateway has read it
  await expect(page.getByRole("status").first()).toContainText("window removed");

  await model.getByRole("button", { name: "Stop cold-8b" }).click();
  await expect(status).toHaveText("Cold");
  await page.reload();
  const summary = model.getByText("Event log of box");
  if (!(await log.isVisible())) await summary.click(); // it is open while the state changes
  await expect(log).toContainText("shutting down");
  await model.getByRole("button", { name: "Warm cold-8b" }).click();
  await expect(log).not.toContainText("draining → stopped"); // the log is that of the new launch, which takes five seconds
  await summary.focus();
  await expect(status).toHaveText("Ready"); // also while the summary has the focus, which it keeps
  await expect(summary).toBeFocused();
  await expect(log).toContainText("starting → ready");
  await page.goto("/admin/audit");
  for (const action of ["warm model", "book window", "remove window", "stop model"]) {
    await expect(page.getByRole("row", { name: new RegExp(`${action} .*cold-8b`) }).first()).toBeVisible();
  }
});

test("a refresh between the press and the release of the pointer does not lose the click", async ({ page }) => {
  await signIn(page);
  await page.goto("/admin/models");
  await page.evaluate(() => { window.refreshed = new Promise((resolve) => { document.addEventListener("live", resolve, { once: true }); }); });
  const button = page.getByRole("button", { name: /^(Warm|Stop) cold-8b$/, disabled: false });
  await button.hover();
  await page.mouse.down();
  await page.evaluate(() => window.refreshed);
  await page.mouse.up();
  await expect(page.locator("#done")).toBeVisible();
});

for (const [path, seconds] of [["/dashboard", 10], ["/usage/requests", 5], ["/admin/models", 2]]) {
  test(`${path} refreshes itself while it is visible, and says so`, async ({ page }) => {
    await page.clock.install();
    await signIn(page);
    await page.goto(path);
    const line = page.locator("[data-live-every]");
    await expect(line).toContainText(`Live: refreshed every ${seconds} s`);
    let refreshes = 0;
    page.on("request", (r) => { if (r.headers()["basegate-live"]) refreshes++; });
    await (await complete(process.env.API_KEY, { user: `live-${seconds}` })).text();
    await expect(async () => {
      await page.clock.runFor(1000 * seconds);
      if (path === "/usage/requests") await expect(page.locator("#live-requests")).toContainText("live-5", { timeout: 500 });
      expect(refreshes).toBeGreaterThan(0);
    }).toPass();
    await hide(page, true);
    const before = refreshes;
    await page.clock.runFor(60_000);
    expect(refreshes, "a hidden tab refreshes").toBe(before);
    await hide(page, false);
    await expect.poll(() => refreshes).toBeGreaterThan(before);
    await page.route(`**${path}`, (route) => route.abort());
    await page.clock.runFor(1000 * seconds);
    await expect(line).toContainText("Not updated since");
    await page.unroute(`**${path}`);
    await page.context().clearCookies();
    await page.clock.runFor(1000 * seconds);
    await expect(line).toContainText("signed out");
  });
}
