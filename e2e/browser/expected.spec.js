// What a user expects of the pages: times of one zone, equal parameters in a comparison, messages of one sentence, what is copied.
import { addToConfig, basegate, checkPage, complete, expect, expectAccessible, signIn, test } from "./console.js";
import { chooseKey, done, event, expectText, generate, open, prompt } from "./workbench.js";

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
  await expect(prompt(page).locator("[data-mark='↵']")).toHaveCount(3);
  await expect(prompt(page).locator(".chip")).toHaveAttribute("data-mark", "<|end_of_text|>");
  const text = "Copy a\n\tb c\n\nd";
  await prompt(page).evaluate((el) => getSelection().selectAllChildren(el));
  await page.keyboard.press("Control+C");
  expect(await copied()).toBe(text);
  await prompt(page).locator("..").evaluate((el) => getSelection().selectAllChildren(el));
  await page.keyboard.press("Control+C");
  expect(await copied()).toContain(text);
  expect(await copied()).not.toMatch(/↵|⇥|·|<\||⟨|Edit/);
  await page.evaluate(() => { // from the middle of a token to the middle of another one
    const tokens = [...document.querySelectorAll("#prompt [data-i]")];
    const [from, to] = [tokens.find((el) => el.textContent.includes("\t")), tokens.find((el) => el.textContent === "d")];
    getSelection().setBaseAndExtent([...from.childNodes].find((node) => node.data === "b"), 1, to.firstChild, 1);
  });
  await page.keyboard.press("Control+C");
  expect(await copied()).toBe(" c\n\nd");
  await page.getByText("Copy and export", { exact: true }).click();
  await page.getByRole("button", { name: "Plain text" }).click();
  await expect.poll(copied).toBe(text);
  await page.getByLabel("Special tokens in plain text").check();
  await page.getByRole("button", { name: "Plain text" }).click();
  await expect.poll(copied).toBe(`<|begin_of_text|>${text}<|end_of_text|>`);
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
  await expect(page.locator("#progress .run").nth(1)).toHaveText(/^trinity-base: \d+ prompt \+ 10 completion tokens/);
  const [first, second] = ["llama-8b", "trinity-base"].map((id) => bodies.find(({ model }) => model === id));
  expect({ ...second, model: "", prompt: "" }).toEqual({ ...first, model: "", prompt: "" });
  expect(second).toMatchObject({ max_tokens: 10, temperature: 0, seed: 7 });
  await expect(page.locator("#generate")).toBeEnabled();

  bodies.length = 0;
  await page.locator(".other summary").first().click();
  await page.locator("#q-max_tokens").fill("3");
  await page.locator("#p-temperature").fill("0.5");
  await expect(page.locator("#q-temperature")).toHaveValue("0.5");
  await generate(page, "Unequal", 6);
  await expect(page.locator("#progress .run").nth(1)).toHaveText(/\+ 3 completion tokens/);
  await expect.poll(() => bodies.map(({ model, max_tokens, temperature }) => `${model} ${max_tokens} ${temperature}`).sort()).toEqual(["llama-8b 6 0.5", "trinity-base 3 0.5"]);
  await expectAccessible(page);
  await page.getByRole("button", { name: "Equal parameters" }).click();
  await expect(page.locator("#q-max_tokens")).toHaveValue("6");
});

// expectSaved waits until the document is saved, and returns the time in UTC that is shown on hover.
async function expectSaved(status) {
  await expect(status).toHaveText(/^Saved \d\d:\d\d$/);
  return (await status.getAttribute("title")).match(/\d\d:\d\d:\d\d(?= UTC$)/)[0];
}

test("the time of a save is local, and goes with the next edit, also of a parameter or the name", async ({ page }) => {
  await open(page);
  await prompt(page).fill("To be saved");
  await page.getByRole("textbox", { name: "Name", exact: true }).fill(`Saved ${Date.now()}`);
  const status = page.locator("#saved-status");
  for (const edit of [() => prompt(page).fill("Edited"), () => page.locator("#p-seed").fill("9"), async () => {
    await page.getByRole("textbox", { name: "Name", exact: true }).fill(`Renamed ${Date.now()}`);
    await page.keyboard.press("Tab");
  }]) {
    await page.getByRole("button", { name: "Save", exact: true }).click();
    const title = await expectSaved(status);
    expect(await status.textContent()).toBe(`Saved ${String((Number(title.slice(0, 2)) + 8) % 24).padStart(2, "0")}${title.slice(2, 5)}`);
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
  await page.getByRole("button", { name: "Again" }).click();
  await expectText(page, "Different two");
  for (const name of ["one", "two"]) await page.getByRole("checkbox", { name: `Show side by side: ${name}` }).check();
  await page.getByRole("button", { name: "Show differences" }).click();
  const box = page.locator("#difference");
  await expect(box.locator("p.tokens")).toHaveText("Different one two");
  await page.getByRole("treeitem", { name: /^two/ }).click();
  await page.getByRole("button", { name: "Name", exact: true }).click();
  await page.getByLabel("Name of the branch").fill("The second one");
  await page.keyboard.press("Enter");
  await expect(box).toContainText("1 only in The second one, ");
  page.on("dialog", (dialog) => dialog.accept());
  await page.getByRole("button", { name: "New", exact: true }).click();
  await expect(box).toBeHidden();
});

test("an error is one sentence and its advice, not doubled", async ({ page }) => {
  await open(page);
  for (const [code, status, retry, message, text, param] of [
    ["circuit_open", 503, "1", "every backend of llama-8b has failed repeatedly; the next try is in 1 seconds", "The model’s servers have failed repeatedly, and are left alone for a moment. Try again in 1 second."],
    ["overloaded", 503, "7", "too many requests are waiting", "The gateway is busy. Try again in 7 seconds."],
    ["rate_limited", 429, "1", "too many requests; try again in 1 seconds", "Too many requests. Try again in 1 second."],
    ["invalid_request", 400, "", "max_tokens: got 1.5, expected an integer", "max_tokens: got 1.5, expected an integer."],
    ["invalid_request", 400, "", "temperature must be non-negative", "temperature must be non-negative.", "temperature"],
    ["context_length_exceeded", 400, "", "the prompt has 9 tokens; shorten it", "The prompt has 9 tokens; shorten it."],
    ["internal_error", 500, "", "internal error", "This is an error of the gateway and has been logged. Try again, and send feedback if it persists."],
    ["vllm_engine_dead", 502, "", "the engine has died", "The model’s server has stopped. Try again in a few seconds."],
  ]) {
    await page.route("**/console/api/completions*", (route) => route.fulfill({ status, headers: { ...(retry && { "Retry-After": retry }), "Content-Type": "application/json" }, body: JSON.stringify({ error: { code, message, param } }) }));
    await generate(page, code);
    await expect(page.locator("#error p")).toHaveText(text);
    await page.locator("#error summary").click();
    await expect(page.locator("#error details code")).toContainText(`${status} · ${code}`);
    await expect(page.locator("#error details code")).toContainText(message);
    await page.unroute("**/console/api/completions*");
  }
});

// narrowKey creates a key that may use llama-8b alone, which is the only one that the workbench lists from now on.
async function narrowKey(page) {
  const keys = JSON.parse(basegate("key", "list", "--json"));
  if (!keys.some(({ name }) => name === "narrow")) {
    basegate("key", "create", "--account", process.env.EMAIL, "--name", "narrow", "--models", "llama-8b");
  }
  await page.route("**/console/api/workbench", async (route) => {
    const response = await route.fetch();
    const options = await response.json();
    return route.fulfill({ response, json: { ...options, keys: options.keys.filter(({ name }) => name === "narrow") } });
  });
}

const refusal = (id) => `The key “narrow” may not use ${id}: choose another model or key.`;

// requestedModels collects the models of the page's completions and chat completions.
function requestedModels(page) {
  const models = [];
  page.on("request", (request) => { if (/\/console\/api\/(chat\/)?completions/.test(request.url())) models.push(request.postDataJSON().model); });
  return models;
}

test("a model that the chosen key may not use is listed as such, and nothing is sent to it", async ({ page }) => {
  basegate("key", "create", "--account", process.env.EMAIL, "--name", "trinity", "--models", "trinity-base");
  const requested = requestedModels(page);
  await open(page);
  await generate(page, "Of llama-8b");
  await done(page);
  requested.length = 0;
  await page.getByText("Score and compare texts").click();
  await page.locator("#first-text").fill("A text");
  await chooseKey(page, "trinity");
  const reason = "The key “trinity” may not use llama-8b: choose another model or key.";
  for (const id of ["model", "second-model", "first-text-model", "second-text-model"]) {
    await expect(page.locator(`#${id} option[value=llama-8b]`)).toHaveText("llama-8b (not allowed for this key)");
    await expect(page.locator(`#${id} option[value=llama-8b]`)).toBeDisabled();
    await expect(page.locator(`#${id} option[value=trinity-base]`)).toBeEnabled();
    await expect(page.locator(`#${id}`)).toHaveValue("llama-8b");
  }
  for (const name of ["Generate", "Score prompt", "Score"]) await expect(page.getByRole("button", { name, exact: true })).toBeDisabled();
  for (const id of ["refusal", "score-refusal"]) await expect(page.locator(`#${id}`)).toHaveText(reason);
  await checkPage(page, "workbench-refusal");
  await prompt(page).press("Control+Enter");
  await page.locator("#tree [tabindex='0']").press("Enter");

  await page.locator("#model").selectOption("trinity-base");
  await expect(page.locator("#refusal")).toBeEmpty();
  await expect(page.locator("#score-refusal")).toHaveText(reason);
  await page.getByText("Compare with").click();
  await page.getByLabel("Compare", { exact: true }).check();
  await expect(page.locator("#refusal")).toHaveText(reason);
  await expect(page.locator("#generate")).toBeDisabled();
  await expect(page.locator("#score")).toBeEnabled();
  await page.getByLabel("Compare", { exact: true }).uncheck();
  await generate(page, "Of trinity-base");
  await done(page);
  await expect(page.locator("#generate")).toBeEnabled();
  await expect(page.locator("#score-texts")).toBeDisabled();
  expect(requested).toEqual(["trinity-base"]);
});

test("a saved prompt and a draft keep their model, also if the chosen key may not use it", async ({ page }) => {
  const name = `Of trinity-base ${Date.now()}`;
  const expectRefused = async (text) => {
    await expectText(page, text);
    await expect(page.locator("#model")).toHaveValue("trinity-base");
    await expect(page.locator("#refusal")).toHaveText(refusal("trinity-base"));
    await expect(page.locator("#generate")).toBeDisabled();
  };
  await open(page);
  await page.locator("#model").selectOption("trinity-base");
  await prompt(page).fill("Saved");
  await page.getByRole("textbox", { name: "Name", exact: true }).fill(name);
  await page.getByRole("button", { name: "Save", exact: true }).click();
  await expect(page.locator("#saved-status")).toHaveText(/^Saved \d\d:\d\d$/);
  await open(page);
  await page.locator("#model").selectOption("trinity-base");
  await prompt(page).fill("A draft");
  await narrowKey(page);
  await page.reload();
  await expect(page.locator("#progress")).toContainText("restored");
  await expectRefused("A draft");
  page.on("dialog", (dialog) => dialog.accept());
  await page.getByRole("button", { name: "New", exact: true }).click();

  await open(page);
  await expect(page.locator("#model")).toHaveValue("llama-8b");
  await expect(page.locator("#generate")).toBeEnabled();
  await page.getByText("Open", { exact: true }).click();
  await page.locator("#open-panel").getByRole("button", { name, exact: true }).click();
  await expectRefused("Saved");
  await page.locator("#model").selectOption("llama-8b");
  await generate(page, "Saved");
  await done(page);
});

test("a conversation whose model the chosen key may not use gets no answer, and takes messages", async ({ page }) => {
  const requested = requestedModels(page);
  await open(page);
  await page.locator("#model").selectOption("llama-8b-instruct");
  await page.getByRole("radio", { name: "Chat" }).check();
  await page.locator("#c-max_completion_tokens").fill("4");
  await page.locator("#message").fill("A question");
  await page.getByRole("button", { name: "Send", exact: true }).click();
  await done(page);
  await expect(page.getByRole("button", { name: "Send", exact: true })).toBeEnabled();
  await narrowKey(page);
  await page.reload();
  await expect(page.locator("#progress")).toContainText("restored");
  await expect(page.locator("#model")).toHaveValue("llama-8b-instruct");
  await expect(page.locator("#refusal")).toHaveText(refusal("llama-8b-instruct"));
  await expect(page.getByRole("button", { name: "Send", exact: true })).toBeDisabled();
  const turns = page.locator("#turns > li");
  await expect(turns).toHaveCount(2);
  for (const control of ["regenerate", "continue"]) await turns.last().locator(`[data-control=${control}]`).click();
  await page.locator("#message").fill("Another question");
  await page.locator("#message").press("Control+Enter");
  await page.getByRole("button", { name: "Add", exact: true }).click();
  await expect(turns).toHaveText([/A question/, /./, /Another question/]);
  expect(requested).toEqual(["llama-8b-instruct"]);
});

test("a model whose boot has failed says when the next attempt is, and not how long it boots", async ({ page }) => {
  const remove = addToConfig(`  - id: broken-8b
    checkpoint: org/broken-8b
    backends:
      - {name: box, url: "http://127.0.0.1:9", launch: {start: ["/bin/false"], stop: ["/bin/true"], boot_estimate: 3s}}
`);
  try {
    const row = page.locator("#live-models tr").filter({ hasText: "broken-8b" });
    await expect(async () => {
      await page.goto("/dashboard");
      await expect(row).toContainText(/Cold boots in about 3\ss/, { timeout: 1000 });
    }).toPass();
    // A page is looked at within the half minute after a failure, if need be after another one.
    const afterAFailure = (look) => expect(async () => {
      await complete(process.env.API_KEY, { model: "broken-8b" });
      await look({ timeout: 2000 });
    }).toPass();
    await afterAFailure(async (limit) => {
      await page.goto("/dashboard");
      await expect(row).toContainText(/Boot failed could not be started\. Next boot attempt in \d+\ss/, limit);
    });
    await expect(row).not.toContainText("on request");
    await afterAFailure(async (limit) => {
      await open(page);
      await page.locator("#model").selectOption("broken-8b");
      await expect(page.locator("#model-state")).toContainText("It could not be started. Next boot attempt in", limit);
    });
    await afterAFailure(async (limit) => {
      await page.goto("/admin/models");
      const model = page.getByRole("region", { name: /^broken-8b/ });
      await expect(model.getByRole("heading").first()).toContainText("Boot failed", limit);
      await expect(model.getByRole("table").first()).toContainText(/failed.*launch: .*exit status 1.*Next boot attempt/, limit);
    });
  } finally {
    remove();
  }
});
