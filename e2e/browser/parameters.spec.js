// The parameters of a request: all of the API's, checked as the API does; what is copied; and the line that says them.
import { boxOf, checkPage, expect, signIn, test } from "./console.js";
import { done, expectText, generate, generateAll, open, prompt, tokens } from "./workbench.js";

const requestBodies = (page) => {
  const bodies = [];
  page.on("request", (request) => { if (request.url().includes("/console/api/completions")) bodies.push(request.postDataJSON()); });
  return bodies;
};

test.beforeEach(async ({ page }) => { await signIn(page); });

test("every parameter of the API is sent as the API takes it, and kept by a reload", async ({ page }) => {
  const bodies = requestBodies(page);
  await open(page);
  await prompt(page).fill("All of them");
  await page.locator("#settings").getByText("More parameters").click();
  const values = {
    top_k: "40", min_p: "0.01", presence_penalty: "0.1", frequency_penalty: "0.2", repetition_penalty: "1.1", stop: "END\\n", stop_token_ids: "7, 8 9",
    min_tokens: "2", bad_words: "never", logit_bias: "{\"300\": -5}", repetition_detection: "{\"max_pattern_size\": 20, \"min_count\": 4}", allowed_token_ids: Array.from({ length: 300 }, (_, i) => 300 + i).join(" "),
    truncate_prompt_tokens: "900", cache_salt: "lab-1", user: "bench",
  };
  for (const [name, value] of Object.entries(values)) await page.locator(`#p-${name}`).fill(value);
  for (const name of ["ignore_eos", "include_stop_str_in_output", "add_special_tokens"]) await page.locator(`#p-${name}`).selectOption("true");
  for (const name of ["skip_special_tokens", "spaces_between_special_tokens"]) await page.locator(`#p-${name}`).selectOption("false");
  await page.locator("#p-truncation_side").selectOption("right");
  await page.reload();
  await expect(page.locator("#bench[data-ready]")).toBeAttached();
  await expect(page.locator("#p-stop_token_ids")).toHaveValue("7 8 9");
  await generate(page, "All of them", 5);
  await done(page);
  expect(bodies[0]).toMatchObject({
    top_k: 40, min_p: 0.01, presence_penalty: 0.1, frequency_penalty: 0.2, repetition_penalty: 1.1, stop: ["END\n"], stop_token_ids: [7, 8, 9],
    min_tokens: 2, ignore_eos: true, bad_words: ["never"], logit_bias: { 300: -5 }, include_stop_str_in_output: true,
    repetition_detection: { max_pattern_size: 20, min_count: 4 }, allowed_token_ids: Array.from({ length: 300 }, (_, i) => 300 + i),
    add_special_tokens: true, skip_special_tokens: false, spaces_between_special_tokens: false, truncate_prompt_tokens: 900, truncation_side: "right",
    cache_salt: "lab-1", user: "bench",
  });
  await page.locator("#p-allowed_token_ids").fill("");
  await page.locator("#p-structured_outputs").fill("{\"type\": \"object\", \"properties\": {\"a\": {\"type\": \"integer\"}}, \"required\": [\"a\"]}");
  await page.locator("#p-max_tokens").fill("40");
  await page.getByRole("button", { name: "Generate" }).click();
  await expect.poll(() => bodies.length).toBe(2);
  expect(bodies[1].structured_outputs).toEqual({ json: { type: "object", properties: { a: { type: "integer" } }, required: ["a"] } });
  await checkPage(page, "workbench-parameters");
});

test("a parameter is checked as the API does before it is sent, at its field", async ({ page }) => {
  const bodies = requestBodies(page);
  await open(page);
  await prompt(page).fill("To be checked");
  await page.locator("#settings").getByText("More parameters").click();
  for (const [name, value, message] of [["min_tokens", "900", /^min_tokens: got 900; expected/], ["stop_token_ids", "x", /^stop_token_ids/], ["top_p", "1.5", /^top_p/]]) {
    await page.locator(`#p-${name}`).fill(value);
    await expect(page.locator("#cost")).toHaveText(message);
    await expect(page.locator(`#p-${name}`)).toHaveAttribute("aria-invalid", "true");
    await page.locator(`#p-${name}`).fill("");
    await expect(page.locator("#cost")).toContainText("Next run: ");
    await expect(page.locator(`#p-${name}`)).not.toHaveAttribute("aria-invalid", "true");
  }
  await page.locator("#p-logit_bias").fill("{\"hello\": 3}");
  await page.getByRole("button", { name: "Generate" }).click();
  await expect(page.locator("#error")).toContainText("logit_bias: Expected token ids and numbers from -100 to 100");
  await expect(page.locator("#p-logit_bias")).toBeFocused();
  expect(bodies).toEqual([]);
});

test("a line above Generate says the model and the parameters, and opens them", async ({ page }) => {
  await open(page);
  const line = page.locator("#summary");
  await expect(line).toHaveText("llama-8b · T 1 · 64 tokens");
  await page.locator("#p-temperature").fill("0.7");
  await page.locator("#p-seed").fill("7");
  await page.locator("#p-max_tokens").fill("256");
  await expect(line).toHaveText("llama-8b · T 0.7 · 256 tokens · seed 7");
  await page.locator("#model").selectOption("trinity-base");
  await expect(line).toHaveText(/^trinity-base · /);
  await page.setViewportSize({ width: 390, height: 844 });
  expect((await boxOf(line)).y).toBeLessThan((await boxOf(page.locator("#generate"))).y);
  await page.locator("#parameters > summary").click();
  await line.click();
  await expect(page.locator("#p-max_tokens")).toBeFocused();
  await expect(page.locator("#p-max_tokens")).toBeInViewport();
});

test("a request is copied with its text, and with token ids on request", async ({ page }) => {
  await open(page);
  await generateAll(page, "Copied as text", 4);
  await done(page);
  const text = await prompt(page).evaluate((el) => el.value);
  await page.getByText("Copy and export", { exact: true }).click();
  const copied = async () => JSON.parse(await page.locator("#copied").textContent()).prompt;
  await page.getByRole("button", { name: "JSON", exact: true }).click();
  expect(await copied()).toBe(text);
  await page.getByLabel("Token ids in place of the text").check();
  await page.getByRole("button", { name: "JSON", exact: true }).click();
  const ids = await copied();
  expect(ids.length).toBeGreaterThan(4);
  expect(ids.every(Number.isInteger)).toBe(true);
});

test("a screen reader hears a completion in sentences, and can read the text as text", async ({ page }) => {
  await open(page);
  const event = (text, i) => `data: ${JSON.stringify({ choices: [{ index: 0, text, finish_reason: null, logprobs: { tokens: [`token_id:${300 + i}`], token_logprobs: [-1], top_logprobs: [null] } }] })}\n\n`;
  await page.route("**/console/api/completions*", (route) => route.fulfill({
    contentType: "text/event-stream",
    body: `${[" one", " is", " here", ".", " Two", " is", " not"].map(event).join("")}data: ${JSON.stringify({ choices: [], usage: { prompt_tokens: 1, completion_tokens: 7 } })}\n\ndata: [DONE]\n\n`,
  }));
  await generate(page, "Heard");
  await done(page);
  await expect(page.getByRole("log", { name: "Generated text" }).locator("p")).toHaveText(["one is here.", "Two is not"]);
  const client = await page.context().newCDPSession(page);
  const { nodes } = await client.send("Accessibility.getFullAXTree");
  const box = nodes.find(({ role, name }) => role?.value === "textbox" && name?.value === "Prompt");
  expect(box.value.value).toBe("Heard one is here. Two is not");
});

test("on a phone a tapped token is in the upper third above its sheet, which goes to the tokens beside it", async ({ page }) => {
  await page.setViewportSize({ width: 390, height: 844 });
  await open(page);
  await generateAll(page, "Tapped on a phone", 60);
  await done(page);
  const count = await tokens(page).count();
  const token = tokens(page).nth(count - 4);
  await token.click();
  const sheet = page.locator("#token");
  await expect(sheet).toBeVisible();
  await expect.poll(async () => (await boxOf(token)).y).toBeLessThan(844 / 3);
  expect((await boxOf(token)).y).toBeGreaterThan(0);
  const heading = await sheet.locator("h3").textContent();
  await sheet.getByRole("button", { name: "Next token" }).click();
  await expect(tokens(page).nth(count - 3)).toHaveClass(/current/);
  await sheet.getByRole("button", { name: "Previous token" }).click();
  await expect(sheet.locator("h3")).toHaveText(heading);
  if (process.env.SCREENSHOTS) await page.screenshot({ path: `${process.env.SCREENSHOTS}/workbench-sheet.png` });
  await sheet.getByRole("button", { name: "Close", exact: true }).click();
  await expect(page.locator("body")).not.toHaveClass(/with-sheet/);
});

test("at 400 kbit/s the workbench is usable with less than 120 KiB", async ({ page }) => {
  const client = await page.context().newCDPSession(page);
  await client.send("Network.enable");
  await client.send("Network.setCacheDisabled", { cacheDisabled: true });
  let bytes = 0;
  client.on("Network.loadingFinished", ({ encodedDataLength }) => { bytes += encodedDataLength; });
  await client.send("Network.emulateNetworkConditions", { offline: false, latency: 20, downloadThroughput: 400_000 / 8, uploadThroughput: 400_000 / 8 });
  await open(page);
  const took = await page.evaluate(() => performance.now());
  console.log(`the workbench is ready after ${Math.round(took)} ms at 400 kbit/s, with ${Math.round(bytes / 1024)} KiB`);
  expect(bytes).toBeLessThan(120 * 1024);
});

test("what is typed into a new prompt while its scripts are loaded is kept, after the draft that there is", async ({ page }) => {
  let load;
  await page.route("**/static/*/workbench/page.js", async (route) => {
    await new Promise((resolve) => { load = resolve; });
    await route.continue();
  });
  const typeEarly = async (text) => {
    load = null;
    await page.goto("/workbench", { waitUntil: "commit" });
    await prompt(page).click();
    await page.keyboard.type(text);
    await expect(prompt(page)).toHaveText(text);
    await expect.poll(() => load !== null).toBe(true);
    load();
    await expect(page.locator("#bench[data-ready]")).toBeAttached();
  };
  await typeEarly("Typed early");
  await page.keyboard.type(" and late");
  await expectText(page, "Typed early and late");
  await typeEarly("!");
  await expectText(page, "Typed early and late!");
});
