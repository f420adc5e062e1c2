import { accessible, basegate, expect, look, signIn, test } from "./console.js";

// open goes to the workbench, which is ready when it knows what there is to work with.
async function open(page, path = "/workbench") {
  await page.goto(path);
  await expect(page.locator("#bench[data-ready]")).toBeAttached();
}

async function write(page, text, parameters = {}) {
  await page.getByLabel("Prompt", { exact: true }).fill(text);
  for (const [name, value] of Object.entries(parameters)) await page.locator(`#p-${name}`).fill(String(value));
}

// sent collects the bodies of the completions that the page asks for.
function sent(page) {
  const bodies = [];
  page.on("request", (request) => { if (request.url().includes("/console/api/completions")) bodies.push(request.postDataJSON()); });
  return bodies;
}

const done = (page) => expect(page.locator("#progress")).toHaveText(/\d+ \+ \d+ tokens/);
const column = (page) => page.locator("#columns .column");

test.beforeEach(async ({ page }) => { await signIn(page); });

test("a continuation streams, and each token shows what else could have stood there", async ({ page }) => {
  await open(page);
  await write(page, "The capital of France is", { max_tokens: 12, seed: 7 });
  await page.getByRole("button", { name: "Generate" }).click();
  await done(page);
  const tokens = column(page).getByRole("option");
  expect(await tokens.count()).toBeGreaterThan(8);
  await expect(column(page)).toContainText("The capital of France is");

  await tokens.nth(8).hover();
  await expect(page.locator("#token")).toContainText(/probability .* bits · rank/);
  expect(await page.locator("#token").getByRole("button").count()).toBeGreaterThan(2);

  await column(page).getByRole("listbox").focus();
  await page.keyboard.press("End");
  const last = await page.locator("#token h3").textContent();
  await page.keyboard.press("ArrowLeft");
  await expect(page.locator("#token h3")).not.toHaveText(last);
  await page.keyboard.press("Enter");
  await expect(page.locator("#token button:focus")).toBeVisible();

  const kept = await page.locator("#token h3").textContent();
  await tokens.nth(6).hover();
  await expect(page.locator("#token h3")).toHaveText(kept);
  await page.keyboard.press("Escape");
  await tokens.nth(6).hover();
  await tokens.nth(7).hover();
  await expect(page.locator("#token h3")).not.toHaveText(kept);

  for (const measure of ["probability", "rank", "entropy", "surprisal"]) await page.locator("#measure").selectOption(measure);
  await look(page, "workbench");
});

test("a branch goes on from exactly the ids before it", async ({ page }) => {
  const bodies = sent(page);
  await open(page);
  await write(page, "Once upon a time", { max_tokens: 10, seed: 3, temperature: 1 });
  await page.getByRole("button", { name: "Generate" }).click();
  await done(page);
  expect(bodies).toHaveLength(1);
  expect(bodies[0].prompt.every(Number.isInteger)).toBe(true);

  const doc = column(page).getByRole("option");
  const before = await doc.allTextContents();
  const at = bodies[0].prompt.length + 3;
  const ids = async () => Number((await page.locator("#token p").first().textContent()).match(/id (\d+)/)[1]);
  const expected = [...bodies[0].prompt];
  for (let i = bodies[0].prompt.length; i < at; i++) {
    await doc.nth(i).hover();
    expected.push(await ids());
  }
  // What is opened stays, whatever the pointer passes on its way to what else could have stood there.
  await doc.nth(at).click();
  const opened = await ids();
  await doc.nth(at + 2).hover();
  expect(await ids()).toBe(opened);
  await page.locator("#token").getByRole("button", { name: /^Continue with/ }).first().click();
  await expect.poll(() => bodies.length).toBe(2);
  expect(bodies[1].prompt.slice(0, -1)).toEqual(expected);
  await expect(page.locator("#tree li")).toHaveCount(3);
  await done(page);

  // The prefix stays to the letter, the first continuation is still there, and both can be gone back to.
  const after = await column(page).getByRole("option").allTextContents();
  expect(after.slice(0, at)).toEqual(before.slice(0, at));
  await page.locator("#tree button").nth(1).click();
  await expect(column(page).getByRole("option")).toHaveText(before);
  await page.getByRole("button", { name: /Remove the branch/ }).first().click();
  await expect(page.locator("#tree li")).toHaveCount(1);
});

test("several continuations, and two models, stand side by side", async ({ page }) => {
  await open(page);
  await write(page, "Two roads diverged", { max_tokens: 6, n: 3, seed: 1 });
  await page.getByRole("button", { name: "Generate" }).click();
  await expect(column(page)).toHaveCount(3);
  await done(page);
  await page.locator("#p-n").fill("1");
  await page.getByText("Compare with").click();
  await page.getByLabel("Compare", { exact: true }).check();
  await page.locator("#second-model").selectOption("trinity-base");
  await page.locator("#q-max_tokens").fill("6");
  await page.getByRole("button", { name: "Generate" }).click();
  await expect(column(page)).toHaveCount(2);
  await expect(column(page).nth(1)).toContainText("trinity-base");
  await accessible(page);
});

test("another prompt or model leaves the branches there are, and a comparison goes on with each model's own ids", async ({ page }) => {
  const bodies = sent(page);
  await open(page);
  await write(page, "The first prompt", { max_tokens: 5, seed: 1 });
  await page.getByText("Compare with").click();
  await page.getByLabel("Compare", { exact: true }).check();
  await page.locator("#second-model").selectOption("trinity-base");
  await page.locator("#q-max_tokens").fill("5");
  await page.locator("#q-seed").fill("1");
  await page.getByRole("button", { name: "Generate" }).click();
  await expect(column(page)).toHaveCount(2);
  await done(page);
  await page.getByLabel("Compare", { exact: true }).uncheck();

  const second = column(page).filter({ hasText: "trinity-base" });
  await second.getByRole("button", { name: "Go on from its end" }).click();
  await expect.poll(() => bodies.length).toBe(3);
  const asked = bodies.find((one) => one.model === "trinity-base");
  expect(bodies[2].model).toBe("trinity-base");
  expect(bodies[2].prompt.slice(0, asked.prompt.length)).toEqual(asked.prompt);
  expect(bodies[2].prompt).toHaveLength(asked.prompt.length + 5);
  await expect(page.locator("#model")).toHaveValue("trinity-base");
  await expect(page.locator("#tree li")).toHaveCount(5);

  await page.locator("#model").selectOption("llama-8b");
  await write(page, "A second prompt");
  await page.getByRole("button", { name: "Generate" }).click();
  await expect(page.locator("#tree li")).toHaveCount(7);
  await done(page);
  await write(page, "A third, only written");
  await page.locator("#tree button").first().click();
  await expect(page.getByLabel("Prompt", { exact: true })).toHaveValue("The first prompt");
  await page.getByRole("button", { name: /A third, only written/ }).first().click();
  await expect(page.getByLabel("Prompt", { exact: true })).toHaveValue("A third, only written");
});

test("of two models that are compared a cold one alone is asked again", async ({ page }) => {
  const asked = { "llama-8b": 0, "trinity-base": 0 };
  await page.route("**/console/api/completions*", (route) => {
    const { model } = route.request().postDataJSON();
    if (asked[model]++ > 0 || model === "llama-8b") return route.continue();
    return route.fulfill({
      status: 503, headers: { "Retry-After": "1", "Content-Type": "application/json" },
      body: JSON.stringify({ error: { code: "modal_cold_boot", message: "trinity-base is starting", type: "service_unavailable", param: null } }),
    });
  });
  await open(page);
  await write(page, "One of us sleeps", { max_tokens: 4 });
  await page.getByText("Compare with").click();
  await page.getByLabel("Compare", { exact: true }).check();
  await page.locator("#second-model").selectOption("trinity-base");
  await page.getByRole("button", { name: "Generate" }).click();
  await expect.poll(() => asked["trinity-base"]).toBe(2);
  await expect(page.getByRole("button", { name: "Generate" })).toBeEnabled();
  expect(asked).toEqual({ "llama-8b": 1, "trinity-base": 2 });
  await expect(column(page)).toHaveCount(2);
});

test("a score is the sum of the API's log-probabilities", async ({ page }) => {
  await open(page);
  const text = "It was the best of times, it was the worst of times.";
  await write(page, text);
  const answered = page.waitForResponse((r) => r.url().includes("/console/api/completions"));
  await page.getByRole("button", { name: "Score the prompt" }).click();
  const [answer, request] = [await (await answered).json(), (await answered).request().postDataJSON()];
  const sum = answer.choices[0].prompt_logprobs.reduce((all, one, i) => all + (one ? one[request.prompt[i]].logprob : 0), 0);
  await expect(page.locator("#scores")).toContainText(`${sum.toFixed(3)} nats`);
  await expect(page.locator("#scores")).toContainText(`${(-sum / Math.log(2) / text.length).toFixed(3)} bits`);
  await expect(column(page).locator(".shade-8, .shade-7, .shade-6, .shade-5, .shade-4").first()).toBeVisible();
});

test("a stream is stopped, and what had come is kept", async ({ page }) => {
  await open(page);
  await write(page, "Count for ever: 1, 2, 3,", { max_tokens: 2000, seed: 1 });
  await page.getByRole("button", { name: "Generate" }).click();
  await expect.poll(() => column(page).getByRole("option").count()).toBeGreaterThan(15);
  await page.getByRole("button", { name: "Stop" }).click();
  await expect(page.locator("#progress")).toContainText("Stopped");
  expect(await column(page).getByRole("option").count()).toBeGreaterThan(15);
});

test("a saved prompt opens in a second browser with its branches, and is deleted", async ({ page, browser }) => {
  await open(page);
  await write(page, "Saved for later", { max_tokens: 5, seed: 1 });
  await page.getByRole("button", { name: "Generate" }).click();
  await done(page);
  const text = await column(page).getByRole("option").allTextContents();
  page.on("dialog", (dialog) => dialog.accept());
  await page.getByLabel("Name").fill("A study");
  await page.getByRole("button", { name: "Save", exact: true }).click();
  await expect(page.locator("#saved-status")).toHaveText("Saved.");

  const other = await browser.newContext({ baseURL: process.env.CONSOLE });
  const second = await other.newPage();
  await signIn(second);
  await open(second);
  await second.locator("#saved-search").fill("nothing like it");
  await expect(second.getByText("Nothing that is saved has these words.")).toBeVisible();
  await second.locator("#saved-search").fill("saved later");
  await second.getByRole("button", { name: "A study", exact: true }).click();
  await expect(second.getByLabel("Prompt", { exact: true })).toHaveValue("Saved for later");
  await expect(column(second).getByRole("option")).toHaveText(text);
  await expect(second).toHaveURL(/prompt=pr_/);

  await second.getByRole("button", { name: "Save", exact: true }).click();
  await expect(second.locator("#saved-status")).toHaveText("Saved.");
  await page.getByRole("button", { name: "Save", exact: true }).click();
  await expect(page.locator("#saved-status")).toContainText("changed elsewhere");
  await page.getByRole("button", { name: "Save", exact: true }).click();
  await expect(page.locator("#saved-status")).toHaveText("Saved.");
  await expect(page.locator("#saved").getByRole("button", { name: "A study", exact: true })).toHaveCount(2);
  await page.getByRole("button", { name: "Delete A study" }).first().click();
  await expect(page.locator("#saved-status")).toContainText("is deleted");

  second.on("dialog", (dialog) => dialog.accept());
  await second.getByRole("button", { name: "Delete A study" }).click();
  await expect(second.locator("#saved-status")).toContainText("is deleted");
  await expect(second.getByText("A study", { exact: true })).toHaveCount(0);
  await other.close();
});

test("a spent budget and a wrong parameter are told in words, beside what they are about", async ({ page }) => {
  const secret = basegate("key", "create", "--account", process.env.EMAIL, "--name", "spent", "--monthly-budget", "3");
  expect(secret).toContain("acs-bm-");
  await open(page);
  await write(page, "A prompt of more than three tokens, surely");
  const option = page.locator("#key option", { hasText: "spent" });
  await expect(option).toBeAttached();
  await page.locator("#key").selectOption(await option.getAttribute("value"));
  await page.getByRole("button", { name: "Generate" }).click();
  await expect(page.getByRole("alert").filter({ hasText: "The cap is that of the key" })).toBeVisible();

  await page.locator("#key").selectOption({ index: 0 });
  await page.locator("#p-temperature").fill("9");
  await page.getByRole("button", { name: "Generate" }).click();
  await expect(page.locator("#error")).toContainText("temperature");
  await expect(page.locator("#p-temperature")).toHaveAttribute("aria-invalid", "true");
  await accessible(page);
});

test("a cold model counts down, and the request goes on by itself", async ({ page }) => {
  let refused = 0;
  await page.route("**/console/api/completions*", (route) => { // the demo's models are always warm
    if (refused++ > 0) return route.continue();
    return route.fulfill({
      status: 503, headers: { "Retry-After": "3", "Content-Type": "application/json" },
      body: JSON.stringify({ error: { code: "modal_cold_boot", message: "llama-8b is starting", type: "service_unavailable", param: null, retry_after_seconds: 3 } }),
    });
  });
  await open(page);
  await write(page, "Wake up", { max_tokens: 4 });
  await page.getByRole("button", { name: "Generate" }).click();
  await expect(page.locator("#progress")).toContainText("llama-8b is starting: about 2 s more. It goes on by itself.");
  await done(page);
  expect(refused).toBe(2);
});

test("the request is copied as curl, Python and JSON", async ({ page }) => {
  await open(page);
  await write(page, "Copy me");
  await page.getByText("Copy the request").click();
  for (const [kind, part] of [["curl", "/v1/completions"], ["Python", "client.completions.create("], ["JSON", '"prompt": "Copy me"']]) {
    await page.getByRole("button", { name: kind, exact: true }).click();
    await expect(page.locator("#copied")).toContainText(part);
  }
});

test("the page is light", async ({ page }) => {
  let bytes = 0;
  page.on("response", async (response) => { bytes += (await response.body().catch(() => Buffer.alloc(0))).length; });
  await open(page);
  expect(bytes).toBeLessThan(300_000);
});
