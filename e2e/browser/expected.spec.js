// What a user expects of the pages: times of one zone, equal parameters in a comparison, messages of one sentence, what is copied.
import { addToConfig, basegate, complete, expect, expectAccessible, signIn, test } from "./console.js";
import { chooseKey, columns, done, event, generate, open, prompt } from "./workbench.js";

test.use({ timezoneId: "Asia/Singapore" }); // eight hours ahead of UTC

// answer makes completions of tokens with these texts.
const answer = (page, texts) => page.route("**/console/api/completions*", (route) => route.fulfill({
  contentType: "text/event-stream",
  body: `${texts.map((text, i) => event(text, 500 + i)).join("")}data: ${JSON.stringify({ choices: [], usage: { prompt_tokens: 1, completion_tokens: texts.length } })}\n\ndata: [DONE]\n\n`,
}));

test.beforeEach(async ({ page }) => { await signIn(page); });

test("what is copied of generated text is the text, by selection and by the button", async ({ page, context }) => {
  await context.grantPermissions(["clipboard-read", "clipboard-write"]);
  const copied = () => page.evaluate(() => navigator.clipboard.readText());
  await open(page);
  await answer(page, [" a", "\n", "\tb c", "\n\n", "d", "<|end_of_text|>"]);
  await generate(page, "Copy");
  await done(page);
  await page.locator("#show-spaces").check();
  await expect(columns(page).locator(".tokens")).toContainText("↵");
  await expect(columns(page).locator(".tokens")).toContainText("<|begin_of_text|>");
  const text = "Copy a\n\tb c\n\nd";
  await columns(page).locator(".tokens").evaluate((el) => getSelection().selectAllChildren(el));
  await page.keyboard.press("Control+C");
  expect(await copied()).toBe(text);
  await columns(page).first().evaluate((el) => getSelection().selectAllChildren(el));
  await page.keyboard.press("Control+C");
  expect(await copied()).toContain(text);
  expect(await copied()).not.toMatch(/↵|⇥|·|<\||⟨|Edit/);
  await page.evaluate(() => { // from the middle of a token to the middle of another one
    const tokens = [...document.querySelectorAll("#columns [data-i]")];
    const [from, to] = [tokens.find((el) => el.textContent.includes("⇥")), tokens.find((el) => el.textContent === "d")];
    getSelection().setBaseAndExtent(from.firstChild, 3, to.firstChild, 1);
  });
  await page.keyboard.press("Control+C");
  expect(await copied()).toBe(" c\n\nd");
  await page.getByText("Copy and export", { exact: true }).click();
  await page.getByRole("button", { name: "Plain text" }).click();
  await expect.poll(copied).toBe(text);
});

test("times are local with seconds on all pages, the zone is said once, and UTC is shown on hover", async ({ page }) => {
  await complete(process.env.API_KEY);
  for (const path of ["/usage/requests", "/dashboard", "/admin/models", "/admin/overview", "/admin/audit"]) {
    await page.goto(path);
    await expect(page.locator("#zone")).toHaveText("Times are in your time zone, Asia/Singapore (UTC+8); point at one for UTC.");
    expect(await page.locator("th, dt, label").filter({ hasText: /(Time|Begin), UTC/ }).count()).toBe(0);
    for (const [text, title, datetime, classes] of await page.locator("time:not([data-ago])").evaluateAll((all) => all.map((el) => [el.textContent, el.title, el.dateTime, "clock" in el.dataset]))) {
      const shifted = new Date(new Date(datetime).getTime() + 8 * 3600_000).toISOString();
      expect(text, path).toMatch(classes ? /^\d\d:\d\d:\d\d$/ : /^\d{1,2} \w+ \d{4}, \d\d:\d\d:\d\d$/);
      expect(text, path).toContain(shifted.slice(11, 19));
      expect(title, path).toContain(`${datetime.slice(11, 19)} UTC`);
    }
  }
  await page.goto("/usage/requests");
  await expect(page.locator("time").first()).toHaveText(/^\d{1,2} \w+ \d{4}, \d\d:\d\d:\d\d$/);
});

test("a comparison has equal parameters unless they are changed, and a line of progress for each run", async ({ page }) => {
  const bodies = [];
  page.on("request", (request) => { if (/\/console\/api\/completions/.test(request.url())) bodies.push(request.postDataJSON()); });
  await open(page);
  await page.locator("#p-temperature").fill("0");
  await page.locator("#p-seed").fill("7");
  await page.getByText("Compare with").click();
  await page.getByLabel("Compare", { exact: true }).check();
  await page.locator("#second-model").selectOption("trinity-base");
  await generate(page, "Equal", 10);
  await expect(page.locator("#progress")).toHaveText(/^llama-8b: \d+ prompt \+ 10 completion tokens/);
  await expect(page.locator("#second-progress")).toHaveText(/^trinity-base: \d+ prompt \+ 10 completion tokens/);
  const [first, second] = ["llama-8b", "trinity-base"].map((id) => bodies.find(({ model }) => model === id));
  expect({ ...second, model: "", prompt: "" }).toEqual({ ...first, model: "", prompt: "" });
  expect(second).toMatchObject({ max_tokens: 10, temperature: 0, seed: 7 });
  await expect(page.locator("#generate")).toBeEnabled();

  bodies.length = 0;
  await page.locator("#q-max_tokens").fill("3");
  await page.locator("#p-temperature").fill("0.5");
  await expect(page.locator("#q-temperature")).toHaveValue("0.5");
  await generate(page, "Unequal", 6);
  await expect(page.locator("#second-progress")).toHaveText(/\+ 3 completion tokens/);
  await expect.poll(() => bodies.map(({ model, max_tokens, temperature }) => `${model} ${max_tokens} ${temperature}`).sort()).toEqual(["llama-8b 6 0.5", "trinity-base 3 0.5"]);
  await expectAccessible(page);
  await page.getByRole("button", { name: "Equal parameters" }).click();
  await expect(page.locator("#q-max_tokens")).toHaveValue("6");
});

test("“Saved.” goes with the next edit, also of a parameter or the name", async ({ page }) => {
  await open(page);
  await prompt(page).fill("To be saved");
  await page.getByRole("textbox", { name: "Name", exact: true }).fill(`Saved ${Date.now()}`);
  const status = page.locator("#saved-status");
  for (const edit of [() => prompt(page).fill("Edited"), () => page.locator("#p-seed").fill("9"), async () => {
    await page.getByRole("textbox", { name: "Name", exact: true }).fill(`Renamed ${Date.now()}`);
    await page.keyboard.press("Tab");
  }]) {
    await page.getByRole("button", { name: "Save", exact: true }).click();
    await expect(status).toHaveText("Saved.");
    await edit();
    await expect(status).toHaveText("Edited");
  }
  await page.reload();
  await expect(page.locator("#progress")).toContainText("restored");
  await expect(page.locator("#p-seed")).toHaveValue("9");
});

test("differences are those of the document that is shown", async ({ page }) => {
  await open(page);
  await answer(page, [" one"]);
  await generate(page, "Different");
  await done(page);
  await page.unroute("**/console/api/completions*");
  await answer(page, [" two"]);
  await page.getByRole("button", { name: "Generate" }).click();
  await expect(columns(page)).toContainText([" two"]);
  for (const name of ["one", "two"]) await page.getByRole("checkbox", { name: `Show side by side: ${name}` }).check();
  await page.getByRole("button", { name: "Show differences" }).click();
  const box = page.locator("#difference");
  await expect(box.locator("p.tokens")).toHaveText("Different one two");
  await page.locator("#tree").getByRole("button", { name: "two", exact: true }).click();
  await page.getByRole("button", { name: "Name", exact: true }).click();
  await page.getByLabel("Name of the branch").fill("The second one");
  await page.keyboard.press("Enter");
  await expect(box).toContainText("The second one, which has 1 others");
  page.on("dialog", (dialog) => dialog.accept());
  await page.getByRole("button", { name: "New", exact: true }).click();
  await expect(box).toBeHidden();
});

test("an error is one sentence and its advice, not doubled", async ({ page }) => {
  await open(page);
  for (const [code, status, retry, message, text, param] of [
    ["circuit_open", 503, "1", "every backend of llama-8b has failed repeatedly; the next try is in 1 seconds", "Every backend of llama-8b has failed repeatedly. Try again in 1 second."],
    ["overloaded", 503, "7", "too many requests are waiting", "Too many requests are waiting. Try again in 7 seconds."],
    ["rate_limited", 429, "1", "too many requests; try again in 1 seconds", "Too many requests. Try again in 1 second."],
    ["invalid_request", 400, "", "max_tokens: got 1.5, expected an integer", "max_tokens: got 1.5, expected an integer."],
    ["invalid_request", 400, "", "temperature must be non-negative", "temperature must be non-negative.", "temperature"],
    ["vllm_engine_dead", 502, "", "the engine has died", "The engine has died. The model’s server has stopped. Try again in a few seconds."],
  ]) {
    await page.route("**/console/api/completions*", (route) => route.fulfill({ status, headers: { ...(retry && { "Retry-After": retry }), "Content-Type": "application/json" }, body: JSON.stringify({ error: { code, message, param } }) }));
    await generate(page, code);
    await expect(page.locator("#error p")).toHaveText(text);
    await page.unroute("**/console/api/completions*");
  }
});

test("only models that the chosen key may use are offered", async ({ page }) => {
  basegate("key", "create", "--account", process.env.EMAIL, "--name", "narrow", "--models", "trinity-base");
  await open(page);
  await expect(page.locator("#model option[value=llama-8b]")).toHaveCount(1);
  await chooseKey(page, "narrow");
  for (const id of ["model", "second-model", "first-text-model", "second-text-model"]) {
    expect(await page.locator(`#${id} option`).evaluateAll((all) => all.map((el) => el.value))).toEqual(["trinity-base"]);
  }
  await generate(page, "Narrow");
  await done(page);
});

test("a model whose boot has failed says when the next attempt is, and not that it starts on request", async ({ page }) => {
  const remove = addToConfig(`  - id: broken-8b
    checkpoint: org/broken-8b
    backends:
      - {name: box, url: "http://127.0.0.1:9", launch: {start: ["/bin/false"], stop: ["/bin/true"], boot_estimate: 3s}}
`);
  try {
    const row = page.locator("#live-models tr").filter({ hasText: "broken-8b" });
    await expect(async () => {
      await page.goto("/dashboard");
      await expect(row).toContainText("starts on request", { timeout: 1000 });
    }).toPass();
    await complete(process.env.API_KEY, { model: "broken-8b" });
    await expect(row).toContainText(/could not be started\. Next boot attempt in \d+ seconds?/);
    await expect(row).not.toContainText("on request");
    await open(page);
    await page.locator("#model").selectOption("broken-8b");
    await expect(page.locator("#model-state")).toContainText("It could not be started. Next boot attempt in");
  } finally {
    remove();
  }
});
