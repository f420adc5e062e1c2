// The map of branches, the popover of a token, and what makes branches.
import { expect, checkPage, signIn, test } from "./console.js";
import { columns, open, prompt } from "./workbench.js";

const rows = (page) => page.locator("#tree li");
const label = (page, i) => rows(page).nth(i).locator("[data-control=select]");
const tick = (page, i) => rows(page).nth(i).getByRole("checkbox");
const idle = (page) => expect(page.locator("#generate")).toBeEnabled();

async function generate(page, text, parameters = {}) {
  await open(page);
  await prompt(page).fill(text);
  for (const [name, value] of Object.entries({ max_tokens: 8, seed: 3, ...parameters })) await page.locator(`#p-${name}`).fill(String(value));
  await page.getByRole("button", { name: "Generate" }).click();
  await expect(page.locator("#progress")).toContainText("completion tokens");
  await idle(page);
}

test.beforeEach(async ({ page }) => { await signIn(page); });

test("branches are bookmarked, named, collapsed, and kept by a reload", async ({ page }) => {
  await generate(page, "A map of branches", { n: 3 });
  await expect(rows(page)).toHaveCount(4);
  await label(page, 2).click();
  await page.getByRole("button", { name: "Bookmark", exact: true }).click();
  await expect(label(page, 2)).toHaveText(/^★ /);
  await page.getByRole("button", { name: "Name", exact: true }).click();
  await page.getByRole("textbox", { name: "Name of the branch" }).fill("the good one");
  await page.keyboard.press("Enter");
  await expect(label(page, 2)).toHaveText("★ the good one");
  await expect(columns(page).nth(1)).toContainText("the good one");
  await page.getByLabel("Bookmarked only").check();
  await expect(rows(page)).toHaveCount(1);
  await page.getByLabel("Bookmarked only").uncheck();
  await page.reload();
  await expect(label(page, 2)).toHaveText("★ the good one");
  await page.getByRole("button", { name: /^Hide the branches of Prompt/ }).click();
  await expect(rows(page)).toHaveCount(1);
  await page.getByRole("button", { name: /^Show the branches of Prompt/ }).press("ArrowRight");
  await expect(rows(page)).toHaveCount(4);
  await label(page, 0).focus();
  await page.keyboard.press("ArrowDown");
  await expect(label(page, 1)).toBeFocused();
  await checkPage(page, "workbench-branches");
});

test("a deleted branch comes back with those that followed it", async ({ page }) => {
  await generate(page, "Deleted by mistake");
  await columns(page).getByRole("button", { name: "Continue", exact: true }).click();
  await expect(rows(page)).toHaveCount(3);
  await idle(page);
  const text = await columns(page).getByRole("option").allTextContents();
  await label(page, 1).click();
  await page.getByRole("button", { name: "Delete branch" }).click();
  await expect(rows(page)).toHaveCount(1);
  await expect(page.locator("#deleted")).toContainText("Branch deleted with the one that followed it.");
  await page.getByRole("button", { name: "Undo" }).click();
  await expect(rows(page)).toHaveCount(3);
  await label(page, 2).click();
  await expect(columns(page).getByRole("option")).toHaveText(text);
});

test("up to four branches of any origin are side by side, and two are compared", async ({ page }) => {
  await generate(page, "Side by side", { n: 3, temperature: 1 });
  await page.locator("#p-n").fill("2");
  await page.getByLabel("Prompt", { exact: true }).fill("Another origin");
  await page.getByRole("button", { name: "Generate" }).click();
  await expect(rows(page)).toHaveCount(7);
  await idle(page);
  await tick(page, 1).check();
  await tick(page, 2).check();
  await expect(columns(page)).toHaveCount(2);
  await page.getByRole("button", { name: "Show differences" }).click();
  const difference = page.getByRole("region", { name: "Differences" });
  await expect(difference).toContainText(/has \d+ tokens that are not in/);
  expect(await difference.locator(".tokens del, .tokens ins").count()).toBeGreaterThan(0);
  const first = (await columns(page).first().getByRole("option").allTextContents()).filter((token) => token !== "<|begin_of_text|>").join("");
  const kept = await difference.locator(".tokens").evaluate((el) => [...el.childNodes].filter((n) => n.nodeName !== "INS").map((n) => n.textContent).join(""));
  expect(kept).toBe(first);
  await tick(page, 3).check();
  await tick(page, 5).check();
  await expect(columns(page)).toHaveCount(4);
  await expect(columns(page).nth(3)).toContainText("Another origin");
  await expect(tick(page, 6)).toBeDisabled();
  await checkPage(page, "workbench-side-by-side");
  await page.getByRole("button", { name: "Show one" }).click();
  await expect(columns(page)).toHaveCount(2);
});

test("text of one's own in the place of a token makes a branch", async ({ page }) => {
  const bodies = [];
  page.on("request", (request) => { if (request.url().includes("/api/completions")) bodies.push(request.postDataJSON()); });
  await generate(page, "The weather today");
  const options = columns(page).getByRole("option");
  const before = await options.allTextContents();
  const at = bodies[0].prompt.length + 2;
  await options.nth(at).click();
  await page.getByLabel("Text of your own").fill(" purple elephants");
  await page.getByRole("button", { name: "Continue with it" }).click();
  await expect.poll(() => bodies.length).toBe(2);
  await idle(page);
  expect(bodies[1].prompt.slice(0, bodies[0].prompt.length)).toEqual(bodies[0].prompt);
  const after = await options.allTextContents();
  expect(after.slice(0, at)).toEqual(before.slice(0, at));
  expect(after.slice(at).join("")).toMatch(/^ purple elephants/);
  await expect(rows(page)).toHaveCount(3);
});

test("generated text that is edited in its place becomes a branch, from which the model continues", async ({ page }) => {
  const bodies = [];
  page.on("request", (request) => { if (request.url().includes("/api/completions")) bodies.push(request.postDataJSON()); });
  await generate(page, "Once upon a time");
  const options = columns(page).getByRole("option");
  const before = (await options.allTextContents()).join("");
  await columns(page).getByRole("button", { name: "Edit", exact: true }).click();
  const field = page.getByLabel("Generated text");
  const words = (await field.inputValue()).split(" ");
  words.splice(3, 1, "zebra");
  await field.fill(words.join(" "));
  await checkPage(page, "workbench-edit");
  await page.getByRole("button", { name: "Keep as a branch" }).click();
  await expect(rows(page)).toHaveCount(3);
  expect((await options.allTextContents()).join("")).toContain(words.join(" "));
  await columns(page).getByRole("button", { name: "Continue", exact: true }).click();
  await expect.poll(() => bodies.length).toBe(2);
  await idle(page);
  await expect(rows(page)).toHaveCount(4);
  expect(bodies[1].prompt.slice(0, bodies[0].prompt.length)).toEqual(bodies[0].prompt);
  await label(page, 1).click();
  expect((await options.allTextContents()).join("")).toBe(before);
});

test("the popover of a token follows the arrow keys, and shows rank, id, probability and their sum", async ({ page }) => {
  await generate(page, "Arrow keys");
  const options = columns(page).getByRole("option");
  await options.nth((await options.count()) - 3).click();
  const popover = page.locator("#token");
  await expect(popover.locator(".head")).toHaveText(/rank.*token.*id.*probability.*total/);
  await expect(popover).toContainText(/probability .* bits · rank .* · entropy/);
  const focused = () => page.evaluate(() => document.activeElement.dataset.id);
  const first = await focused();
  await page.keyboard.press("ArrowDown");
  expect(await focused()).not.toBe(first);
  await page.keyboard.press("ArrowUp");
  expect(await focused()).toBe(first);
  const heading = await popover.locator("h3").textContent();
  await page.keyboard.press("ArrowLeft");
  await expect(popover.locator("h3")).not.toHaveText(heading);
  await page.keyboard.press("Escape");
  await expect(popover).toBeHidden();
  await expect(columns(page).getByRole("listbox")).toBeFocused();
  await page.getByLabel("Show spaces").check();
  await expect(options.filter({ hasText: "·" }).first()).toBeVisible();
});

test("on a phone the token's alternatives are a sheet at the bottom", async ({ page }) => {
  await page.setViewportSize({ width: 390, height: 844 });
  await generate(page, "On a phone");
  await columns(page).getByRole("option").last().click();
  const box = await page.locator("#token").boundingBox();
  expect(box.x).toBe(0);
  expect(box.width).toBe(390);
  expect(Math.round(box.y + box.height)).toBe(844);
  await page.locator("#token").getByRole("button", { name: "Close" }).click();
  await expect(page.locator("#token")).toBeHidden();
});
