// Helpers of the specs of the workbench.
import { expect } from "./console.js";

export const columns = (page) => page.locator("#columns .column");
export const prompt = (page) => page.getByLabel("Prompt", { exact: true });
export const tokens = (page) => page.locator("#prompt [data-i]");

// expectText waits until the text that is shown is this one, or matches an expression.
export const expectText = (page, text) => expect.poll(() => prompt(page).evaluate((el) => el.value)).toEqual(text instanceof RegExp ? expect.stringMatching(text) : text);

// lines returns the lines of the last strip of siblings.
export const lines = (page) => page.locator("#prompt .strip").last().locator("li:not(.head) button");

// open opens the workbench and waits until it has loaded its models and keys.
export async function open(page, path = "/workbench") {
  await page.goto(path);
  await expect(page.locator("#bench[data-ready]")).toBeAttached();
}

// closeTab closes a tab and waits until its drafts are those of a closed one: the browser releases its lock a little later.
export async function closeTab(tab) {
  const other = await tab.context().newPage();
  await other.goto("/usage");
  const lock = await tab.evaluate(() => sessionStorage.getItem("basegate-workbench-tab"));
  await tab.close();
  await expect.poll(() => other.evaluate(async (name) => (await navigator.locks.query()).held.some((held) => held.name === name), lock)).toBe(false);
  await other.close();
}

export async function generate(page, text, maxTokens = 8) {
  await prompt(page).fill(text);
  await page.locator("#p-max_tokens").fill(String(maxTokens));
  await page.getByRole("button", { name: "Generate" }).click();
}

// setMinTokens keeps a text that the mock samples from ending before, or being empty.
export const setMinTokens = (page, tokens) => page.locator("#p-min_tokens").evaluate((el, value) => {
  el.value = value;
  el.dispatchEvent(new Event("input", { bubbles: true }));
}, String(tokens));

export async function generateAll(page, text, tokens = 8) {
  await setMinTokens(page, tokens);
  await generate(page, text, tokens);
}

export const done = (page) => expect(page.locator("#progress")).toHaveText(/completion tokens/);

// event is an event of a stream with one token.
export const event = (text, id) => `data: ${JSON.stringify({ choices: [{ index: 0, text, finish_reason: null, logprobs: { tokens: [`token_id:${id}`], token_logprobs: [-1], top_logprobs: [null] } }] })}\n\n`;

// chooseKey chooses the key with this name.
export async function chooseKey(page, name) {
  const option = page.locator("#key option", { hasText: name });
  await page.locator("#key").selectOption(await option.getAttribute("value"));
}
