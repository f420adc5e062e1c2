// The map of branches, the popover of a token, and what makes branches.
import { basegate, boxOf, expect, checkPage, signIn, test } from "./console.js";
import { chooseKey, columns, expectText, lines, open, prompt, tokens } from "./workbench.js";

const rows = (page) => page.locator("#tree li");
const label = (page, i) => rows(page).nth(i).locator(".label");
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
  await expect(lines(page).nth(1)).toContainText("the good one");
  await page.getByLabel("Bookmarked only").check();
  await expect(rows(page)).toHaveCount(1);
  await page.getByLabel("Bookmarked only").uncheck();
  await page.reload();
  await expect(label(page, 2)).toHaveText("★ the good one");
  await rows(page).first().locator(".toggle").click();
  await expect(rows(page)).toHaveCount(1);
  await expect(rows(page).first()).toHaveAttribute("aria-expanded", "false");
  await rows(page).first().focus();
  await page.keyboard.press("ArrowRight");
  await expect(rows(page)).toHaveCount(4);
  await checkPage(page, "workbench-branches");
});

test("the tree is walked and changed by the keyboard alone", async ({ page }) => {
  await generate(page, "By the keyboard", { n: 3, temperature: 1 });
  const selected = page.locator("#tree [aria-selected=true]");
  const focused = page.locator("#tree li:focus");
  const press = async (...keys) => { for (const key of keys) await page.keyboard.press(key); };
  await rows(page).nth(1).focus();
  const first = await selected.textContent();
  await press("ArrowLeft"); // the prompt
  await expect(focused).toHaveText(/llama-8b: By the keyboard/);
  await expectText(page, "By the keyboard");
  await press("ArrowRight", "j");
  await expect(rows(page).nth(2)).toBeFocused();
  await press("k");
  await expect(focused).toHaveText(first);
  await press("h");
  await expect(rows(page).first()).toBeFocused();
  await press("l", "ArrowDown", "m");
  await expect(focused).toHaveText(/^▾?★ /);
  await press("n");
  await page.keyboard.type("the second");
  await press("Enter");
  await expect(focused).toHaveText("★ the second");
  await page.locator("#p-n").fill("1");
  await rows(page).nth(2).focus();
  await press("Enter"); // generates after it
  await expect(rows(page)).toHaveCount(5);
  await idle(page);
  const text = await prompt(page).evaluate((el) => el.value);
  await rows(page).nth(3).focus();
  await press("e"); // with its parent
  await expect(rows(page)).toHaveCount(4);
  await expectText(page, text);
  await press("z");
  await expect(rows(page)).toHaveCount(1);
  await press("z", "x");
  await expect(rows(page)).toHaveCount(3);
  await press("Control+z");
  await expect(rows(page)).toHaveCount(4);
  await press("Control+Shift+z");
  await expect(rows(page)).toHaveCount(3);
  await press("Control+z", "/");
  await page.keyboard.type("the sec");
  await expect(rows(page)).toHaveCount(1);
  await press("Enter");
  await expect(focused).toHaveText("★ the second");
  await press("/", "Escape");
  await expect(rows(page)).toHaveCount(4);
  await checkPage(page, "workbench-tree");
});

test("a deleted branch comes back with those that followed it", async ({ page }) => {
  await generate(page, "Deleted by mistake");
  await page.locator("#generate").click();
  await expect(rows(page)).toHaveCount(3);
  await idle(page);
  const text = await tokens(page).allTextContents();
  await label(page, 1).click();
  await page.getByRole("button", { name: "Delete branch" }).click();
  await expect(rows(page)).toHaveCount(1);
  await expect(page.locator("#deleted")).toContainText("Branch deleted with the one that followed it.");
  await page.getByRole("button", { name: "Undo" }).click();
  await expect(rows(page)).toHaveCount(3);
  await label(page, 2).click();
  await expect(tokens(page)).toHaveText(text);
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
  await expect(difference).toContainText(/\d+ tokens only in .+, \d+ only in .+, \d+ shared\./);
  expect(await difference.locator(".tokens del, .tokens ins").count()).toBeGreaterThan(0);
  const first = (await columns(page).first().getByRole("option").allTextContents()).join("");
  const kept = await difference.locator(".tokens").evaluate((el) => [...el.childNodes].filter((n) => n.nodeName !== "INS").map((n) => n.textContent).join(""));
  expect(kept).toBe(first);
  await tick(page, 3).check();
  await tick(page, 5).check();
  await expect(columns(page)).toHaveCount(4);
  await expect(columns(page).nth(3)).toContainText("Another origin");
  await expect(tick(page, 6)).toBeDisabled();
  await checkPage(page, "workbench-side-by-side");
  await page.getByRole("button", { name: "Show one" }).click();
  await expect(columns(page)).toHaveCount(0);
});

test("text of one's own in the place of a token makes a branch", async ({ page }) => {
  const bodies = [];
  page.on("request", (request) => { if (request.url().includes("/api/completions")) bodies.push(request.postDataJSON()); });
  await generate(page, "The weather today");
  const options = tokens(page);
  const before = await options.allTextContents();
  const at = 3; // the prompt is one line
  await options.nth(at).click();
  await page.getByLabel("Your own text").fill(" purple elephants");
  await page.getByRole("button", { name: "Branch here" }).click();
  await expect.poll(() => bodies.length).toBe(2);
  await idle(page);
  expect(bodies[1].prompt.slice(0, bodies[0].prompt.length)).toEqual(bodies[0].prompt);
  const after = await options.allTextContents();
  expect(after.slice(0, at)).toEqual(before.slice(0, at));
  expect(after.slice(at).join("")).toMatch(/^ purple elephants/);
  await expect(rows(page)).toHaveCount(3);
});

test("typing within generated text makes a branch, which the model continues, and everything is undone", async ({ page }) => {
  const bodies = [];
  page.on("request", (request) => { if (request.url().includes("/api/completions")) bodies.push(request.postDataJSON()); });
  await generate(page, "Once upon a time");
  const value = () => prompt(page).evaluate((el) => el.value);
  const before = await value();
  const kept = (await tokens(page).allTextContents()).slice(0, 3).join("");
  await tokens(page).nth(3).click({ position: { x: 1, y: 8 } });
  await page.keyboard.press("Escape");
  await page.keyboard.type(" zebra,");
  await expect.poll(value).toBe(`${kept} zebra,${before.slice(kept.length)}`);
  await expect(rows(page)).toHaveCount(3);
  await expect(label(page, 2)).toContainText("zebra,");
  expect(await tokens(page).evaluateAll((all) => all.filter((el) => /zebra/.test(el.textContent)).map((el) => el.className))).toEqual(["token branch-start"]); // no tint
  await expect(tokens(page).nth(1)).toHaveClass(/shade-/);
  await checkPage(page, "workbench-edit");

  await prompt(page).focus(); // the cursor is where it was
  await page.keyboard.press("Control+Enter");
  await expect.poll(() => bodies.length).toBe(2);
  await idle(page);
  await expectText(page, new RegExp(`^${kept} zebra,.+`, "s"));
  expect(await value()).not.toContain(before.slice(kept.length));
  expect(bodies[1].prompt.slice(0, bodies[0].prompt.length + 2)).toEqual(expect.arrayContaining(bodies[0].prompt));
  await label(page, 1).click();
  await expectText(page, before);

  await page.getByRole("button", { name: "Delete branch" }).click();
  await expect(rows(page)).toHaveCount(1);
  await prompt(page).focus();
  for (let i = 0; i < 9 && (await value()) !== "Once upon a time" + before.slice(16); i++) await page.keyboard.press("Control+z");
  await expectText(page, before);
  for (let i = 0; i < 20 && (await value()) !== ""; i++) await page.keyboard.press("Control+z");
  await expectText(page, "");
  for (let i = 0; i < 20; i++) await page.keyboard.press("Control+Shift+z");
  await expect(rows(page)).toHaveCount(1); // deleted again
});

test("siblings are a line each below the place where they part, and are sorted", async ({ page }) => {
  await generate(page, "A strip of siblings", { n: 16, temperature: 1 });
  await expect(lines(page)).toHaveCount(16);
  await expect(page.locator("#prompt .strip summary")).toHaveText("1 of 16 branches");
  const strip = await boxOf(page.locator("#prompt .strip"));
  expect(strip.y).toBeGreaterThan((await boxOf(tokens(page).first())).y);
  for (const line of await lines(page).all()) expect((await boxOf(line)).height).toBeLessThan(34);
  await page.getByRole("button", { name: "Mean log-p" }).click();
  const means = (await lines(page).locator("span.n:nth-of-type(2)").allTextContents()).map(Number);
  expect(means).toHaveLength(16);
  expect(means).toEqual([...means].sort((a, b) => b - a));
  await lines(page).nth(15).click();
  await expect(lines(page).nth(15)).toHaveAttribute("aria-current", "true");
  await expect(lines(page).nth(15)).toBeFocused();
  await expect(lines(page).locator("b").first()).not.toBeEmpty();
  await checkPage(page, "workbench-siblings");
});

test("several branches grow beside each other, each with its progress and Stop, and what the key does not take waits", async ({ page }) => {
  basegate("key", "create", "--account", process.env.EMAIL, "--name", "two at once", "--concurrency", "2");
  await open(page);
  await chooseKey(page, "two at once");
  await page.evaluate(() => { // a stream has a token each 50 ms until it is stopped
    const fetched = window.fetch;
    window.fetch = (input, options) => {
      if (!String(input).includes("completions?key=")) return fetched(input, options);
      const event = { choices: [{ index: 0, text: " more", finish_reason: null, logprobs: { tokens: ["token_id:300"], token_logprobs: [-1], top_logprobs: [null] } }] };
      const body = new ReadableStream({ start(controller) {
        const timer = setInterval(() => controller.enqueue(new TextEncoder().encode(`data: ${JSON.stringify(event)}\n\n`)), 50);
        options.signal.addEventListener("abort", () => { clearInterval(timer); controller.error(options.signal.reason); });
      } });
      return Promise.resolve(new Response(body, { headers: { "Content-Type": "text/event-stream" } }));
    };
  });
  await prompt(page).fill("Beside each other");
  const runs = page.locator("#progress .run");
  const stop = (i) => runs.nth(i).getByRole("button", { name: "Stop" });
  for (let i = 0; i < 3; i++) {
    if (i) await label(page, 0).click();
    await page.locator("#generate").click();
    await expect(stop(i)).toBeVisible();
    if (i < 2) await expect(rows(page)).toHaveCount(2 + i);
  }
  await expect(runs.nth(2)).toContainText("Waits for a run to end: 2 run at once with this key.");
  await expect(rows(page)).toHaveCount(3);
  await label(page, 2).click();
  await expect(page.locator("#generate")).toBeDisabled(); // it grows
  await stop(1).press("Enter");
  await expect(runs.nth(1)).toContainText("Stopped. The text so far is kept");
  await expect(page.locator("#generate")).toBeEnabled();
  await expect(rows(page)).toHaveCount(4);
  await expect(runs.nth(2)).toContainText(/Generating… \d+ tokens/);
  const first = async () => Number((await runs.first().textContent()).match(/([\d,]+) tokens/)?.[1].replace(",", ""));
  const before = await first();
  await expect.poll(first).toBeGreaterThan(before); // it has gone on
  for (const i of [0, 2]) await stop(i).press("Enter");
  await expect(page.getByRole("button", { name: "Stop" })).toHaveCount(0);
  await expect(label(page, 3)).not.toHaveText("(empty)");
});

test("the popover of a token follows the arrow keys, and shows rank, id, probability and their sum", async ({ page }) => {
  await generate(page, "Arrow keys");
  const options = tokens(page);
  await options.nth((await options.count()) - 3).click();
  await page.keyboard.press("Alt+Enter");
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
  await expect(prompt(page)).toBeFocused();
  await page.getByLabel("Show spaces").check();
  await expect(options.locator("[data-mark='·']").first()).toBeVisible();
});

test("on a phone the token's alternatives are a sheet at the bottom", async ({ page }) => {
  await page.setViewportSize({ width: 390, height: 844 });
  await generate(page, "On a phone");
  await tokens(page).last().click();
  const box = await boxOf(page.locator("#token"));
  expect(box.x).toBe(0);
  expect(box.width).toBe(390);
  expect(Math.round(box.y + box.height)).toBe(844);
  await page.locator("#token").getByRole("button", { name: "Close" }).click();
  await expect(page.locator("#token")).toBeHidden();
});
