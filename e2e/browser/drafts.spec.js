import { basegate, expect, expectAccessible, signIn, test } from "./console.js";

const columns = (page) => page.locator("#columns .column");
const prompt = (page) => page.getByLabel("Prompt", { exact: true });

async function open(page) {
  await page.goto("/workbench");
  await expect(page.locator("#bench[data-ready]")).toBeAttached();
}

async function generate(page, text, maxTokens = 8) {
  await prompt(page).fill(text);
  await page.locator("#p-max_tokens").fill(String(maxTokens));
  await page.getByRole("button", { name: "Generate" }).click();
}

const done = (page) => expect(page.locator("#progress")).toHaveText(/completion tokens/);

// event is an event of a stream with one token.
const event = (text, id) => `data: ${JSON.stringify({ choices: [{ index: 0, text, finish_reason: null, logprobs: { tokens: [`token_id:${id}`], token_logprobs: [-1], top_logprobs: [null] } }] })}\n\n`;

test.beforeEach(async ({ page }) => { await signIn(page); });

test("a reload keeps the prompt, its branches and the parameters, and signing out deletes them", async ({ page }) => {
  await open(page);
  await page.locator("#p-seed").fill("77");
  await generate(page, "A draft that stays");
  await done(page);
  const text = await columns(page).getByRole("option").allTextContents();
  await prompt(page).fill("A draft that stays, and more");
  await page.reload();
  await expect(page.locator("#progress")).toContainText("restored");
  await expect(prompt(page)).toHaveValue("A draft that stays, and more");
  await expect(columns(page).getByRole("option")).toHaveText(text);
  await expect(page.locator("#p-seed")).toHaveValue("77");
  await expectAccessible(page);
  await page.getByText(process.env.EMAIL, { exact: true }).click();
  await page.getByRole("button", { name: "Sign out" }).click();
  await expect(page).toHaveURL(/sign-in/);
  expect(await page.evaluate(() => Object.keys(localStorage).filter((key) => key.includes("draft")))).toEqual([]);
  await signIn(page);
  await open(page);
  await expect(prompt(page)).toHaveValue("");
});

test("a session that ended asks for the password and then generates", async ({ page }) => {
  await open(page);
  await page.context().clearCookies({ name: "basegate" });
  await generate(page, "Signed out in between");
  const dialog = page.getByRole("dialog", { name: "Your session has ended" });
  await dialog.getByLabel("Password").fill(process.env.PASSWORD);
  await dialog.getByRole("button", { name: "Sign in and continue" }).click();
  await done(page);
  await expect(prompt(page)).toHaveValue("Signed out in between");
});

test("a lost connection keeps what was typed and says what to do", async ({ page }) => {
  await open(page);
  await generate(page, "The first text");
  await done(page);
  const text = await columns(page).getByRole("option").allTextContents();
  await page.context().setOffline(true);
  await columns(page).getByRole("button", { name: "Continue", exact: true }).click();
  await expect(page.locator("#error")).toContainText("The connection to the gateway was lost. Check your connection and try again.");
  await expect(prompt(page)).toHaveValue("The first text");
  await page.context().setOffline(false);
  await expect(columns(page).getByRole("option")).toHaveText(text);
  await columns(page).getByRole("button", { name: "Continue", exact: true }).click();
  await done(page);
  await expect(page.locator("#error")).toBeEmpty();
});

test("a backend that dies in the middle of a generation leaves the text so far, from which the user continues", async ({ page }) => {
  let requests = 0;
  await page.route("**/console/api/completions*", (route) => {
    if (requests++ > 0) return route.continue();
    const error = { error: { code: "upstream_stream_interrupted", message: "the backend failed during the response", type: "api_error", param: null } };
    return route.fulfill({ contentType: "text/event-stream", body: `${event(" one", 100)}${event(" two", 101)}data: ${JSON.stringify(error)}\n\n` });
  });
  await open(page);
  await generate(page, "Count:");
  await expect(page.locator("#error")).toContainText("The text generated so far is kept.");
  await expect(columns(page)).toContainText("Count:");
  await page.reload();
  await expect(columns(page).getByRole("option").last()).toBeVisible();
  const before = await columns(page).getByRole("option").count();
  await columns(page).getByRole("button", { name: "Continue", exact: true }).click();
  await done(page);
  expect(await columns(page).getByRole("option").count()).toBeGreaterThan(before);
});

test("a used-up budget says when it resets, and keeps what was typed", async ({ page }) => {
  basegate("key", "create", "--account", process.env.EMAIL, "--name", "drained", "--monthly-budget", "3");
  await open(page);
  const option = page.locator("#key option", { hasText: "drained" });
  await page.locator("#key").selectOption(await option.getAttribute("value"));
  await generate(page, "More tokens than three, surely, in this prompt");
  await expect(page.locator("#error")).toContainText(/Key’s monthly budget: 0 of 3 tokens used.* Resets 1 /);
  await expect(prompt(page)).toHaveValue("More tokens than three, surely, in this prompt");
});
