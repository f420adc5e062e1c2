// Comparisons of up to four models: side by side, blind, and by what one model finds of the texts of the others.
import { checkPage, expect, signIn, test } from "./console.js";
import { columns, generateAll, open, prompt, tokens } from "./workbench.js";

const models = ["llama-8b", "trinity-base", "llama-405b", "llama-8b"];
const names = ["second", "third", "fourth"];

// compare opens a comparison of the models, of which the first one is chosen already.
async function compare(page) {
  await open(page);
  await page.getByText("Compare with").click();
  await page.getByLabel("Compare", { exact: true }).check();
  for (const [i, name] of names.entries()) {
    if (i) await page.getByRole("button", { name: "Add a model" }).click();
    await page.locator(`#${name}-model`).selectOption(models[i + 1]);
  }
  await expect(page.getByRole("button", { name: "Add a model" })).toBeHidden();
}

const requestBodies = (page) => {
  const bodies = [];
  page.on("request", (request) => { if (request.url().includes("/console/api/completions")) bodies.push(request.postDataJSON()); });
  return bodies;
};

const ended = (page) => expect(page.locator("#progress .run", { hasText: "completion tokens" }));

test.beforeEach(async ({ page }) => { await signIn(page); });

test("four models run in parallel, with equal parameters but for those that are changed, and a progress each", async ({ page }) => {
  const bodies = requestBodies(page);
  await compare(page);
  const fourth = page.locator(".other").nth(2);
  await fourth.locator("summary").first().click();
  await page.locator("#s-temperature").fill("0.25");
  await expect(fourth.locator("summary b").first()).toHaveText("temperature");
  await expect(page.locator(".other").nth(1).locator("summary").first()).toHaveText("Parameters: equal");
  await generateAll(page, "Four at once", 9);
  await ended(page).toHaveCount(4);
  for (const [i, id] of models.entries()) await expect(page.locator("#progress .run").nth(i)).toContainText(new RegExp(`^${id}: .*\\+ 9 completion tokens`));
  expect(bodies.map(({ model, temperature, max_tokens }) => `${model} ${temperature} ${max_tokens}`).sort())
    .toEqual(["llama-405b 1 9", "llama-8b 0.25 9", "llama-8b 1 9", "trinity-base 1 9"]);
  await expect(columns(page)).toHaveCount(4);
  for (const [i, id] of models.entries()) await expect(columns(page).nth(i).locator("small")).toContainText(id);
  await checkPage(page, "workbench-four-models");
  await page.getByRole("button", { name: "Remove the third model" }).click();
  await expect(page.getByRole("button", { name: "Add a model" })).toBeFocused();
  bodies.length = 0;
  await generateAll(page, "Three at once", 3);
  await expect.poll(() => bodies.map(({ model }) => model).sort()).toEqual(["llama-8b", "llama-8b", "trinity-base"]);
});

test("in a blind comparison nothing tells the models until a text is chosen", async ({ page }) => {
  await compare(page);
  await page.getByLabel("Blind", { exact: true }).check();
  await generateAll(page, "Judge for yourself", 8);
  await ended(page).toHaveCount(4);
  await expect(columns(page)).toHaveCount(4);
  for (const [i, letter] of ["A", "B", "C", "D"].entries()) {
    await expect(columns(page).nth(i).locator("small")).toHaveText(new RegExp(`^Text ${letter} · (length|stop)$`));
    await expect(page.locator("#progress .run").nth(i)).toHaveText(new RegExp(`^Text ${letter}: \\d+ prompt \\+ \\d+ completion tokens$`));
  }
  for (const place of ["#columns", "#progress", "#blind-notice"]) await expect(page.locator(place)).not.toContainText(/llama|trinity/);
  await expect(page.getByRole("tree")).toBeHidden();
  await expect(prompt(page).locator(".strip")).toBeHidden();
  expect(await prompt(page).evaluate((el) => el.value)).toBe("Judge for yourself"); // none of the texts
  await expect(columns(page).getByRole("button", { name: "Continue", exact: true }).filter({ visible: true })).toHaveCount(0);
  await checkPage(page, "workbench-blind");
  await columns(page).nth(2).getByRole("button", { name: "Choose this" }).click();
  await expect(columns(page).nth(2).locator("small")).toHaveText(/^★ · (llama-8b|trinity-base|llama-405b) · (length|stop)$/);
  await expect(columns(page).getByRole("button", { name: "Choose this" }).filter({ visible: true })).toHaveCount(0);
  await expect(page.locator("#tree [aria-selected=true] .label")).toHaveText(/^★ /);
  await expect(page.locator("#blind-notice")).toBeHidden();
});

test("texts are colored by how likely another model finds them", async ({ page }) => {
  await open(page);
  await page.getByText("Compare with").click();
  await page.getByLabel("Compare", { exact: true }).check();
  await page.locator("#second-model").selectOption("trinity-base");
  await generateAll(page, "What do you think of it", 60); // of a few tokens the shades could be the same
  await ended(page).toHaveCount(2);
  const shades = () => columns(page).first().locator("[data-i]").evaluateAll((all) => all.map((el) => el.className));
  const own = await shades();
  const scored = [];
  page.on("response", async (response) => { if (response.url().includes("/loglikelihood")) scored.push(await response.json()); });
  await page.getByLabel("as found by").selectOption("trinity-base");
  await expect(page.locator("#progress")).toContainText("how likely trinity-base finds it");
  await expect.poll(() => scored.length).toBe(2);
  await expect.poll(shades).not.toEqual(own);
  const text = columns(page).first().getByRole("listbox");
  await text.focus();
  for (const key of ["Home", "ArrowRight", "ArrowRight"]) await page.keyboard.press(key); // the second token of the text
  await expect(page.locator("#token")).toContainText(/trinity-base: [\d.]+ bits/);
  const bits = (await page.locator("#token").textContent()).match(/trinity-base: ([\d.]+) bits/)[1];
  expect(scored.map(({ data }) => (-data[0].token_logprobs[1].logprob / Math.log(2)).toFixed(2))).toContain(bits); // as the API says
  await checkPage(page, "workbench-judged");
  await page.getByLabel("as found by").selectOption("");
  await expect.poll(async () => (await shades()).map((name) => name.replace(" current", ""))).toEqual(own);
  await page.getByRole("button", { name: "Show one" }).click();
  await expect(page.getByLabel("as found by")).toBeHidden();
  expect(await tokens(page).count()).toBeGreaterThan(5);
});
