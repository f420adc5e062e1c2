import { expectAccessible, basegate, expect, checkPage, signIn, test } from "./console.js";
import { chooseKey, columns, expectText, lines, open, prompt, setMinTokens, tokens } from "./workbench.js";

// fillIn enters a prompt and parameters.
async function fillIn(page, text, parameters = {}) {
  await page.getByLabel("Prompt", { exact: true }).fill(text);
  for (const [name, value] of Object.entries(parameters)) await page.locator(`#p-${name}`).fill(String(value));
}

// requestBodies collects the bodies of the page's completion requests.
function requestBodies(page) {
  const bodies = [];
  page.on("request", (request) => { if (request.url().includes("/console/api/completions")) bodies.push(request.postDataJSON()); });
  return bodies;
}

const waitUntilDone = (page) => expect(page.locator("#progress")).toHaveText(/\d+ prompt \+ \d+ completion tokens/);
const branches = (page) => page.locator("#tree .label");

test.beforeEach(async ({ page }) => { await signIn(page); });

test("a continuation streams, and each token shows its alternatives", async ({ page }) => {
  await open(page);
  await fillIn(page, "The capital of France is", { max_tokens: 12, seed: 7 });
  await page.getByRole("button", { name: "Generate" }).click();
  await waitUntilDone(page);
  const all = tokens(page);
  expect(await all.count()).toBeGreaterThan(8);
  await expect(prompt(page)).toContainText("The capital of France is");

  await all.nth(8).hover();
  await expect(page.locator("#token")).toContainText(/probability .* bits · rank/);
  expect(await page.locator("#token").getByRole("button").count()).toBeGreaterThan(2);

  await prompt(page).focus();
  await page.keyboard.press("Control+End");
  await page.keyboard.press("Alt+Enter");
  await expect(page.locator("#token button:focus")).toBeVisible();
  const last = await page.locator("#token h3").textContent();
  await page.keyboard.press("ArrowLeft");
  await expect(page.locator("#token h3")).not.toHaveText(last);

  const kept = await page.locator("#token h3").textContent();
  await all.nth(6).hover();
  await expect(page.locator("#token h3")).toHaveText(kept);
  await page.keyboard.press("Escape");
  await all.nth(6).hover();
  await all.nth(7).hover();
  await expect(page.locator("#token h3")).not.toHaveText(kept);

  for (const measure of ["probability", "rank", "entropy", "surprisal"]) await page.locator("#measure").selectOption(measure);
  await checkPage(page, "workbench");
});

test("a branch continues from exactly the token IDs before it", async ({ page }) => {
  const bodies = requestBodies(page);
  await open(page);
  await fillIn(page, "Once upon a time", { max_tokens: 10, seed: 3, temperature: 1 });
  await page.getByRole("button", { name: "Generate" }).click();
  await waitUntilDone(page);
  expect(bodies).toHaveLength(1);
  expect(bodies[0].prompt.every(Number.isInteger)).toBe(true);

  const doc = tokens(page);
  const before = await doc.allTextContents();
  const at = 4; // the prompt is one line
  const ids = async () => Number((await page.locator("#token p").first().textContent()).match(/id (\d+)/)[1]);
  const expected = [...bodies[0].prompt];
  for (let i = 1; i < at; i++) {
    await doc.nth(i).hover();
    expected.push(await ids());
  }
  // A clicked token stays open while the pointer moves over other tokens to its alternatives.
  await doc.nth(at).click();
  const opened = await ids();
  await doc.nth(at + 2).hover();
  expect(await ids()).toBe(opened);
  await page.locator("#token").getByRole("button", { name: /^Continue with/ }).first().click();
  await expect.poll(() => bodies.length).toBe(2);
  expect(bodies[1].prompt.slice(0, -1)).toEqual(expected);
  await expect(page.locator("#tree li")).toHaveCount(3);
  await waitUntilDone(page);

  // The prefix is unchanged, and the first continuation can still be selected.
  const after = await tokens(page).allTextContents();
  expect(after.slice(0, at)).toEqual(before.slice(0, at));
  await branches(page).nth(1).click();
  await expect(tokens(page)).toHaveText(before);
  await page.getByRole("button", { name: "Delete branch" }).click();
  await expect(page.locator("#tree li")).toHaveCount(1);
});

test("several continuations are lines below the prompt, and two models are shown side by side", async ({ page }) => {
  await open(page);
  await fillIn(page, "Two roads diverged", { max_tokens: 6, n: 3, seed: 1 });
  await page.getByRole("button", { name: "Generate" }).click();
  await expect(lines(page)).toHaveCount(3);
  await waitUntilDone(page);
  await page.locator("#p-n").fill("1");
  await page.getByText("Compare with").click();
  await page.getByLabel("Compare", { exact: true }).check();
  await page.locator("#second-model").selectOption("trinity-base");
  await page.getByRole("button", { name: "Generate" }).click();
  await expect(columns(page)).toHaveCount(2);
  await expect(columns(page).nth(1)).toContainText("trinity-base");
  await expectAccessible(page);
});

test("another prompt or model keeps existing branches, and a comparison continues with each model's own token IDs", async ({ page }) => {
  const bodies = requestBodies(page);
  await open(page);
  await fillIn(page, "The first prompt", { max_tokens: 5, seed: 1 });
  await page.getByText("Compare with").click();
  await page.getByLabel("Compare", { exact: true }).check();
  await page.locator("#second-model").selectOption("trinity-base");
  await page.getByRole("button", { name: "Generate" }).click();
  await expect(columns(page)).toHaveCount(2);
  await waitUntilDone(page);
  await expect(page.locator("#generate")).toBeEnabled(); // both models have ended
  await page.getByLabel("Compare", { exact: true }).uncheck();

  const second = columns(page).filter({ hasText: "trinity-base" });
  await second.getByRole("button", { name: "Continue", exact: true }).click();
  await expect.poll(() => bodies.length).toBe(3);
  const comparison = bodies.find((body) => body.model === "trinity-base");
  expect(bodies[2].model).toBe("trinity-base");
  expect(bodies[2].prompt.slice(0, comparison.prompt.length)).toEqual(comparison.prompt);
  expect(bodies[2].prompt).toHaveLength(comparison.prompt.length + 5);
  await expect(page.locator("#model")).toHaveValue("trinity-base");
  await expect(page.locator("#tree li")).toHaveCount(5);

  await page.locator("#model").selectOption("llama-8b");
  await fillIn(page, "A second prompt");
  await page.getByRole("button", { name: "Generate" }).click();
  await expect(page.locator("#tree li")).toHaveCount(7);
  await waitUntilDone(page);
  await fillIn(page, "A third, only written");
  await branches(page).first().click();
  await expectText(page, "The first prompt");
  await page.getByRole("treeitem", { name: /Prompt: A third, only written/ }).click();
  await expectText(page, "A third, only written");
});

test("in a comparison only the request to the cold model is retried", async ({ page }) => {
  const requests = { "llama-8b": 0, "trinity-base": 0 };
  await page.route("**/console/api/completions*", (route) => {
    const { model } = route.request().postDataJSON();
    if (requests[model]++ > 0 || model === "llama-8b") return route.continue();
    return route.fulfill({
      status: 503, headers: { "Retry-After": "1", "Content-Type": "application/json" },
      body: JSON.stringify({ error: { code: "modal_cold_boot", message: "trinity-base is starting", type: "service_unavailable", param: null } }),
    });
  });
  await open(page);
  await fillIn(page, "One of us sleeps", { max_tokens: 4 });
  await page.getByText("Compare with").click();
  await page.getByLabel("Compare", { exact: true }).check();
  await page.locator("#second-model").selectOption("trinity-base");
  await page.getByRole("button", { name: "Generate" }).click();
  await expect.poll(() => requests["trinity-base"]).toBe(2);
  await expect(page.getByRole("button", { name: "Generate" })).toBeEnabled();
  expect(requests).toEqual({ "llama-8b": 1, "trinity-base": 2 });
  await expect(columns(page)).toHaveCount(2);
});

test("a score is the sum of the API's log probabilities", async ({ page }) => {
  await open(page);
  const text = "It was the best of times, it was the worst of times.";
  await fillIn(page, text);
  const responded = page.waitForResponse((r) => r.url().includes("/console/api/loglikelihood"));
  await page.getByRole("button", { name: "Score prompt" }).click();
  const sum = (await (await responded).json()).data[0].logprob;
  await expect(page.locator("#scores")).toContainText(`${sum.toFixed(3)} nats`);
  await expect(page.locator("#scores")).toContainText(`${(-sum / Math.log(2) / text.length).toFixed(3)} bits`);
  await expect(prompt(page).locator(".shade-8, .shade-7, .shade-6, .shade-5, .shade-4").first()).toBeVisible();
});

test("stopping a stream keeps the received tokens", async ({ page }) => {
  await open(page);
  await fillIn(page, "Count for ever: 1, 2, 3,", { max_tokens: 2000, seed: 1 });
  await page.getByRole("button", { name: "Generate" }).click();
  await expect.poll(() => tokens(page).count()).toBeGreaterThan(15);
  await page.getByRole("button", { name: "Stop" }).press("Enter"); // a click would wait for a page that does not move
  await expect(page.locator("#progress")).toContainText("Stopped");
  expect(await tokens(page).count()).toBeGreaterThan(15);
});

test("a saved prompt opens with its branches in a second browser, keeps what both save, and is deleted", async ({ page, browser }) => {
  await open(page);
  await fillIn(page, "Saved for later", { max_tokens: 5, seed: 1 });
  await page.getByRole("button", { name: "Generate" }).click();
  await waitUntilDone(page);
  const text = await tokens(page).allTextContents();
  page.on("dialog", (dialog) => dialog.accept());
  await page.getByRole("textbox", { name: "Name", exact: true }).fill("A study");
  await page.getByRole("button", { name: "Save", exact: true }).click();
  await expect(page.locator("#saved-status")).toHaveText(/^Saved \d\d:\d\d$/);
  await expect(page.locator("#saved-usage")).toHaveText(/^[\d.]+ of 100 MB used\.$/);

  const other = await browser.newContext({ baseURL: process.env.CONSOLE });
  const second = await other.newPage();
  await signIn(second);
  await open(second);
  await second.getByText("Open", { exact: true }).click();
  await second.locator("#saved-search").fill("nothing like it");
  await expect(second.getByText("No matching prompts.")).toBeVisible();
  await second.locator("#saved-search").fill("saved later");
  await second.getByRole("button", { name: "A study", exact: true }).click();
  await expectText(second, /^Saved for later./);
  await expect(tokens(second)).toHaveText(text);
  await expect(second).toHaveURL(/prompt=pr_/);

  await second.getByRole("button", { name: "Save", exact: true }).click();
  await expect(second.locator("#saved-status")).toHaveText(/^Saved \d\d:\d\d$/);
  await page.getByRole("button", { name: "Save", exact: true }).click();
  await expect(page.locator("#saved-status")).toContainText("changed elsewhere");
  await page.locator("#versions-panel > summary").click();
  await expect(page.locator("#versions").getByRole("listitem")).toHaveCount(3);
  await page.getByText("Open", { exact: true }).click();
  await page.locator("#saved").getByRole("button", { name: "Delete A study", exact: true }).click();
  await expect(page.locator("#saved-status")).toContainText("deleted");
  await page.locator("#versions-panel > summary").click();
  await expect(page.locator("#versions-status")).toHaveText("Save the prompt first.");
  await expect(page.locator("#versions").getByRole("listitem")).toHaveCount(0);

  // What was deleted elsewhere is saved as another prompt.
  await second.getByRole("button", { name: "Save", exact: true }).click();
  await expect(second.locator("#saved-status")).toContainText("It is not there, or not any more. Nothing is lost");
  await second.getByRole("button", { name: "Save", exact: true }).click();
  await expect(second.locator("#saved-status")).toHaveText(/^Saved \d\d:\d\d$/);
  second.on("dialog", (dialog) => dialog.accept());
  await second.getByText("Open", { exact: true }).click();
  await second.getByRole("button", { name: "Delete A study" }).click();
  await expect(second.locator("#saved-status")).toContainText("deleted");
  await expect(second.getByText("A study", { exact: true })).toHaveCount(0);
  await other.close();
});

test("a used-up budget and an invalid parameter are explained next to their fields", async ({ page }) => {
  const secret = basegate("key", "create", "--account", process.env.EMAIL, "--name", "spent", "--monthly-budget", "3");
  expect(secret).toContain("acs-bm-");
  await open(page);
  await fillIn(page, "A prompt of more than three tokens, surely");
  await chooseKey(page, "spent");
  await page.getByRole("button", { name: "Generate" }).click();
  await expect(page.getByRole("alert").filter({ hasText: "Key’s monthly budget: " })).toBeVisible();

  await page.locator("#key").selectOption({ index: 0 });
  await page.locator("#p-temperature").fill("9");
  await page.getByRole("button", { name: "Generate" }).click();
  await expect(page.locator("#error")).toContainText("temperature");
  await expect(page.locator("#p-temperature")).toHaveAttribute("aria-invalid", "true");
  await expectAccessible(page);
});

test("a request to a cold model shows a countdown and is retried automatically", async ({ page }) => {
  let refused = 0;
  await page.route("**/console/api/completions*", (route) => { // simulates a cold model, because the demo's models are always warm
    if (refused++ > 0) return route.continue();
    return route.fulfill({
      status: 503, headers: { "Retry-After": "6", "Content-Type": "application/json" },
      body: JSON.stringify({ error: { code: "modal_cold_boot", message: "llama-8b is starting", type: "service_unavailable", param: null, retry_after_seconds: 6 } }),
    });
  });
  await open(page);
  await fillIn(page, "Wake up", { max_tokens: 4 });
  await page.evaluate(() => { // it is shown for a few seconds only
    window.said = "";
    new MutationObserver(() => { window.said += document.getElementById("progress").textContent; }).observe(document.getElementById("progress"), { childList: true, subtree: true, characterData: true });
  });
  await page.getByRole("button", { name: "Generate" }).click();
  await expect.poll(() => page.evaluate(() => window.said)).toMatch(/llama-8b is starting: about [1-5] s left\. Continues automatically\./);
  await waitUntilDone(page);
  expect(refused).toBe(2);
});

test("the request is copied as curl, Python and JSON", async ({ page }) => {
  await open(page);
  await fillIn(page, "Copy me");
  await page.getByText("Copy and export").click();
  for (const [kind, part] of [["curl", "/v1/completions"], ["Python", "client.completions.create("], ["JSON", '"prompt": "Copy me"']]) {
    await page.getByRole("button", { name: kind, exact: true }).click();
    await expect(page.locator("#copied")).toContainText(part);
  }
});

test("the page loads less than 300 kB", async ({ page }) => {
  let bytes = 0;
  page.on("response", async (response) => { bytes += (await response.body().catch(() => Buffer.alloc(0))).length; });
  await open(page);
  expect(bytes).toBeLessThan(300_000);
});

test("new text of a long prompt is in view and followed, unless the user scrolls away", async ({ page }) => {
  await open(page);
  await fillIn(page, Array.from({ length: 250 }, (_, i) => `This is line ${i} of a prompt that is longer than the window.`).join("\n"), { max_tokens: 600, seed: 5 });
  await page.getByRole("button", { name: "Generate" }).click();
  const box = prompt(page);
  await expect.poll(() => tokens(page).count()).toBeGreaterThan(310);
  const last = () => tokens(page).last();
  await expect(last()).toBeInViewport();
  await waitUntilDone(page);
  await expect(last()).toBeInViewport();
  await expect(box).toContainText("line 249 of a prompt");
  expect(await page.evaluate(() => document.documentElement.scrollHeight)).toBeLessThan(3000);

  await page.locator("#p-max_tokens").fill("2500");
  await setMinTokens(page, 2500);
  await page.locator("#generate").click();
  await expect(page.getByRole("button", { name: "Stop" })).toBeVisible();
  const before = await tokens(page).count();
  await expect.poll(() => tokens(page).count()).toBeGreaterThan(before + 5);
  await box.hover();
  await page.mouse.wheel(0, -50_000);
  await expect.poll(() => box.evaluate((el) => el.scrollTop)).toBe(0);
  const reached = await tokens(page).count();
  await expect.poll(() => tokens(page).count()).toBeGreaterThan(reached);
  expect(await box.evaluate((el) => el.scrollTop)).toBe(0);
});

test("tokens that are parts of a character are shown as the character", async ({ page }) => {
  await open(page);
  const text = "Řeka ř teče — 東京 🦉 zář";
  await fillIn(page, text);
  await page.getByRole("button", { name: "Score prompt" }).click();
  await expect(page.locator("#scores")).toBeVisible();
  const shown = (await tokens(page).allTextContents()).join("");
  expect(shown).toContain(text);
  expect(shown).not.toMatch(/⟨\d+⟩/);

  // A stream holds a character back until its last token.
  const choice = (token, textOfEvent) => `data: ${JSON.stringify({ id: "cmpl", object: "text_completion", choices: [{ index: 0, text: textOfEvent, finish_reason: null, logprobs: { tokens: [`token_id:${token}`], token_logprobs: [-1], top_logprobs: [{ [`token_id:${token}`]: -1 }] } }] })}\n\n`;
  const ids = await page.evaluate(async () => (await (await fetch("/console/api/tokenize", { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ model: "llama-8b", prompt: "ř" }) })).json()).tokens);
  const parts = ids.slice(-2);
  await page.route("**/console/api/completions*", (route) => route.fulfill({ contentType: "text/event-stream", body: `${choice(parts[0], "")}${choice(parts[1], "ř")}data: [DONE]\n\n` }));
  await page.getByRole("button", { name: "Generate" }).click();
  await expect(page.locator("#generate")).toBeEnabled();
  const generated = tokens(page);
  await expect(generated.last()).toHaveText("ř");
  expect((await generated.allTextContents()).join("")).not.toMatch(/⟨\d+⟩/);
});
