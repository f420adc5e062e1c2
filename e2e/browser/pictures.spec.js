// The pictures of the documentation: make pictures writes them to docs/pictures. They have 128 colors, so that they stay small.
import { readFileSync, writeFileSync } from "node:fs";
import UPNG from "upng-js";
import { basegate, complete, expect, signIn, test } from "./console.js";

test.use({ colorScheme: "light" });
test.skip(!process.env.PICTURES, "PICTURES is not set");

// picture saves a screenshot of the window, or of a part of the page.
async function picture(page, name, options = {}) {
  const path = `${process.env.PICTURES}/${name}.png`;
  await page.mouse.move(0, 0);
  await page.screenshot({ path, animations: "disabled", ...options });
  const { width, height, ...image } = UPNG.decode(readFileSync(path));
  writeFileSync(path, Buffer.from(UPNG.encode(UPNG.toRGBA8({ width, height, ...image }), width, height, 128)));
}

test("every page", async ({ page }) => {
  test.setTimeout(300_000);
  basegate("account", "create", "ada@example.org", "--name", "Ada", "--monthly-budget", "2M");
  const secret = basegate("key", "create", "--account", "ada@example.org", "--name", "evaluation", "--daily-budget", "100k").trim();
  const notebook = basegate("key", "create", "--account", process.env.EMAIL, "--name", "notebook", "--monthly-budget", "5k").trim();
  for (const [key, model, user, n] of [[secret, "llama-8b", "sweep-1", 6], [secret, "trinity-base", "sweep-2", 4], [notebook, "llama-8b", "draft", 5], [notebook, "llama-405b", "poems", 8]]) {
    for (let i = 0; i < n; i++) await (await complete(key, { model, user, max_tokens: 16 + 8 * i, stream: true })).text();
  }
  await complete(notebook, { n: 0 });
  await signIn(page);
  await page.goto("/usage");
  await page.getByRole("banner").getByRole("link", { name: "Feedback" }).click();
  await page.getByRole("dialog").getByLabel("What works").fill("Please add the entropy of a token to the CSV file.");
  await page.getByRole("dialog").getByRole("button", { name: "Send" }).click();
  await expect(page.getByText("Thank you for the feedback")).toBeVisible();
  const linkOf = async (path, prefix) => {
    await page.goto(path);
    return page.locator(`main a[href^="${prefix}"]`).first().getAttribute("href");
  };
  const pages = {
    dashboard: "/dashboard", "new-key": "/keys/new", key: await linkOf("/dashboard", "/keys/key_"), account: "/account",
    usage: "/usage?account=all&by=key&interval=hour", requests: "/usage/requests?account=all",
    request: await linkOf("/usage/requests", "/usage/requests/req_"), feedback: "/feedback", tutorial: "/tutorial/overview",
    "admin-overview": "/admin/overview", "admin-accounts": "/admin/accounts", "admin-account": await linkOf("/admin/accounts", "/admin/accounts/acc_"),
    "admin-models": "/admin/models", "admin-feedback": "/admin/feedback", "admin-audit": "/admin/audit", "admin-settings": "/admin/settings",
  };
  for (const [name, path] of Object.entries(pages)) {
    expect((await page.goto(path)).status(), path).toBe(200);
    if (name === "admin-overview") await expect(page.locator(".plot canvas")).toHaveCount(6);
    await picture(page, name);
  }
  await page.goto("/dashboard");
  await page.keyboard.press("Control+k");
  await page.keyboard.type("key");
  await expect(page.locator("#palette").getByRole("option").first()).toBeVisible();
  await picture(page, "palette");
  await page.keyboard.press("Escape");
  await page.keyboard.press("?");
  await picture(page, "shortcuts");
});

test("the workbench with a completion and the alternatives of a token", async ({ page }) => {
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
  await page.locator("#prompt [data-i]").nth(8).click();
  await expect(page.locator("#token .alternatives button").first()).not.toContainText("⟨"); // a text, not an id
  await page.evaluate(() => scrollTo(0, 0));
  // Without the header, and as wide as the content, which may be wider than the window.
  const [top, width] = await page.evaluate(() => [document.querySelector("main").offsetTop, document.documentElement.scrollWidth]);
  await picture(page, "workbench", { fullPage: true, clip: { x: 0, y: top, width, height: 800 } });
});

test("the workbench with a conversation and the versions of an answer", async ({ page }) => {
  await signIn(page);
  await page.setViewportSize({ width: 1280, height: 900 });
  await page.goto("/workbench");
  await expect(page.locator("#bench[data-ready]")).toBeAttached();
  await page.locator("#model").selectOption("llama-8b-instruct");
  await page.getByRole("radio", { name: "Chat" }).check();
  await page.getByText("System message", { exact: true }).click();
  await page.getByRole("textbox", { name: "System message" }).fill("Answer in one paragraph.");
  for (const [name, value] of Object.entries({ max_completion_tokens: 40, seed: 4, n: 2 })) await page.locator(`#c-${name}`).fill(String(value));
  for (const text of ["Tell me about the sea.", "And about the wind?"]) {
    await page.getByRole("textbox", { name: "Message", exact: true }).fill(text);
    await page.getByRole("button", { name: "Send", exact: true }).click();
    await expect(page.locator("#progress")).toHaveText(/\d+ prompt \+ \d+ completion tokens/);
  }
  await page.evaluate(() => scrollTo(0, 0));
  const [top, width] = await page.evaluate(() => [document.querySelector("main").offsetTop, document.documentElement.scrollWidth]);
  await picture(page, "workbench-chat", { fullPage: true, clip: { x: 0, y: top, width, height: 800 } });
});

test("the pages of those who are not signed in", async ({ page }) => {
  await page.goto("/sign-in");
  await picture(page, "sign-in");
  await page.goto("/request-access");
  await picture(page, "request-access");
  await page.goto(basegate("account", "invite", "bea@example.org").trim());
  await picture(page, "invitation");
});
