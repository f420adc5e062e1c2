// The tools of the workbench: scores, presets, costs, copies, files and links.
import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { basegate, checkPage, expect, signIn, test } from "./console.js";
import { expectText, open, prompt, tokens } from "./workbench.js";

async function generate(page, text, parameters = {}) {
  await prompt(page).fill(text);
  for (const [name, value] of Object.entries({ max_tokens: 6, seed: 3, ...parameters })) await page.locator(`#p-${name}`).fill(String(value));
  await page.getByRole("button", { name: "Generate" }).click();
  await expect(page.locator("#progress")).toContainText("completion tokens");
  await expect(page.locator("#generate")).toBeEnabled();
}

test.beforeEach(async ({ page }) => { await signIn(page); });

test("one text is compared at two models, and two texts at one, token by token", async ({ page }) => {
  await open(page);
  await page.getByText("Score and compare texts").click();
  await page.getByLabel("First text").fill("It was the best of times.");
  await page.locator("#second-text-model").selectOption("trinity-base");
  await page.getByRole("button", { name: "Score", exact: true }).click();
  const result = page.locator("#score-result");
  await expect(result.getByRole("heading")).toHaveText(["First text, llama-8b", "Second text, trinity-base"]);
  for (const shown of await result.locator(".tokens").all()) await expect(shown).toContainText("It was the best of times.");
  await expect(result.locator("table")).toBeHidden();
  await result.getByText("Table").click();
  await expect(result.locator("table")).toBeVisible();
  const cells = (row) => row.locator("td").allTextContents();
  for (const row of await result.locator("tbody tr").all()) {
    const [, first, , second, difference] = await cells(row);
    if (first && second) expect(Math.abs(Number(second) - Number(first) - Number(difference))).toBeLessThan(0.02);
  }
  const shown = await result.locator("tbody td:first-child").allTextContents();
  expect(shown.join("")).toContain("It was the best of times.");

  await page.locator("#second-text-model").selectOption("llama-8b");
  await page.getByLabel("Second text").fill("It was the worst of times.");
  await page.getByRole("button", { name: "Score", exact: true }).click();
  await expect(result.getByRole("heading")).toHaveText(["First text, llama-8b", "Second text, llama-8b"]);
  const texts = async (column) => (await result.locator(`tbody td:nth-child(${column})`).allTextContents()).join("");
  expect(await texts(1)).toContain("It was the best of times.");
  expect(await texts(3)).toContain("It was the worst of times.");
  const differing = (await Promise.all((await result.locator("tbody tr").all()).map(cells))).filter(([first, , second]) => first !== second);
  expect(differing.length).toBeGreaterThan(0);
  const second = result.locator(".tokens").nth(1);
  const compared = (await Promise.all((await result.locator("tbody tr").all()).map(cells))).filter(([, , , , difference]) => difference);
  expect(compared.length).toBeGreaterThan(0);
  const shaded = async (selector) => (await second.locator(selector).allTextContents()).join("");
  expect(await shaded("[class*=shade]")).toBe(compared.map(([, , text]) => text).join(""));
  expect(await shaded(".likelier")).toBe(compared.filter(([, , , , difference]) => difference.startsWith("-")).map(([, , text]) => text).join(""));

  await second.locator(".token").nth(3).click(); // its details are those of tokens in the document, without what makes branches
  const details = page.locator("#token");
  await expect(details.locator(".alternatives button")).toHaveCount(5);
  await expect(details.locator(".alternatives button:enabled")).toHaveCount(0);
  await expect(details.getByLabel("Your own text")).toHaveCount(0);
  await expect(details).toContainText(/probability .* bits · rank/);
  await page.keyboard.press("ArrowRight");
  await expect(second.locator(".token.current")).toHaveAttribute("data-i", "4");
  await result.locator(".tokens").first().locator(".token").nth(1).click(); // the details go to another text's token
  await expect(details).toContainText("Token was");
  await page.keyboard.press("Escape");
  await expect(details).toBeHidden();
  expect(differing.map(([first]) => first).join("")).not.toContain("times");
  await expect(result).toContainText("per byte");
  await checkPage(page, "workbench-scores");
});

test("the text of a branch is scored: its total is the sum of its rows", async ({ page }) => {
  await open(page);
  await generate(page, "Score what was generated");
  await page.getByText("Score and compare texts").click();
  await page.getByRole("button", { name: "Use the selected branch" }).first().click();
  await expect(page.getByLabel("First text")).toHaveValue(/^Score what was generated/);
  await page.getByRole("button", { name: "Score", exact: true }).click();
  const bits = page.locator("#score-result tbody td:nth-child(2)");
  await expect(bits.first()).toBeAttached();
  const sum = (await bits.allTextContents()).reduce((total, text) => total + Number(text), 0);
  const total = Number(await page.locator("#score-result dd").nth(1).textContent());
  expect(Math.abs(sum - total)).toBeLessThan(0.01 * (await bits.count()));
});

test("answers are ranked by their likelihood", async ({ page }) => {
  await open(page);
  await page.getByText("Multiple choice").click();
  await page.getByRole("button", { name: "Rank" }).click();
  await expect(page.locator("#choice-result")).toContainText("Write the answers");
  await page.getByLabel("Context").fill("The capital of France is");
  const answers = [" Paris", " a city in the north", " London"];
  await page.getByLabel("Answers, one on each line").fill(answers.join("\n"));
  const responded = page.waitForResponse((r) => r.url().includes("/console/api/loglikelihood"));
  await page.getByRole("button", { name: "Rank" }).click();
  const { data, usage } = await (await responded).json();
  const ranked = data.toSorted((a, b) => b.logprob - a.logprob);
  const cells = (column) => page.locator(`#choice-result tbody td:nth-child(${column})`);
  await expect(cells(1)).toHaveText(ranked.map(({ index }) => answers[index].replaceAll(" ", "·")));
  await expect(cells(3)).toHaveText(ranked.map(({ logprob }) => logprob.toFixed(3)));
  expect(Math.abs((await cells(2).allTextContents()).reduce((sum, text) => sum + (parseFloat(text) || 0), 0) - 100)).toBeLessThan(0.2);
  await expect(page.locator("#choice-result")).toContainText(`${usage.total_tokens} tokens charged`);
  await checkPage(page, "workbench-choice");
});

test("presets set the parameters, and one's own is kept until it is deleted", async ({ page }) => {
  await open(page);
  await expect(page.locator("#p-top_k")).toBeHidden();
  await page.locator("#preset").selectOption("Focused");
  await expect(page.locator("#p-top_p")).toHaveValue("0.9");
  await page.getByText("More parameters").first().click();
  await page.locator("#p-top_k").fill("40");
  await page.getByLabel("New preset").fill("My study");
  await page.getByRole("button", { name: "Save preset" }).click();
  await expect(page.locator("#preset-status")).toHaveText("Preset “My study” saved.");
  await page.evaluate(() => localStorage.clear()); // the server keeps it
  await page.reload();
  await expect(page.locator("#bench[data-ready]")).toBeAttached();
  await expect(page.locator("#preset").locator("option", { hasText: "My study" })).toBeAttached();
  await page.locator("#preset").selectOption("Most likely text");
  await expect(page.locator("#p-temperature")).toHaveValue("0");
  await page.locator("#preset").selectOption("My study");
  await expect(page.locator("#p-top_k")).toHaveValue("40");
  await expect(page.locator("#p-top_k")).toBeVisible();
  await page.locator("#p-top_k").focus();
  await expect(page.locator("#p-top_k-hint")).toBeVisible();
  await page.getByRole("button", { name: "Delete preset" }).click();
  await expect(page.locator("#preset").locator("option", { hasText: "My study" })).toHaveCount(0);
});

test("the cost of the next run and what is left of the budget are shown before it runs", async ({ page }) => {
  basegate("key", "create", "--account", process.env.EMAIL, "--name", "capped", "--monthly-budget", "5000");
  await open(page);
  const option = page.locator("#key option", { hasText: "capped" });
  await page.locator("#key").selectOption(await option.getAttribute("value"));
  await expect(page.locator("#budget")).toContainText(/5,000 of 5,000 tokens left of the monthly budget\. Resets 1 /);
  await page.locator("#p-n").fill("2");
  await page.locator("#p-max_tokens").fill("50");
  await prompt(page).fill("How much is this?");
  await expect(page.locator("#cost")).toHaveText(/^Next run: \d+ prompt \+ up to 100 completion tokens\.$/);
  await generate(page, "How much is this?", { n: 1 });
  await expect(page.locator("#progress")).toHaveText(/first token after [\d.]+ s/);
  await expect(page.locator("#budget")).toHaveText(/^4,9\d\d of 5,000 tokens left/);
});

test("a branch is copied as plain text, a batch line that the API takes, and arguments of lm-eval", async ({ page }) => {
  await open(page);
  await generate(page, "Copy this branch");
  await page.getByText("Copy and export").click();
  const copied = page.locator("#copied");
  await page.getByRole("button", { name: "Plain text" }).click();
  await expect(copied).toContainText(/^Copy this branch/);
  await page.getByRole("button", { name: "lm-eval" }).click();
  await expect(copied).toContainText("--model local-completions");
  await page.getByRole("button", { name: "Batch line" }).click();
  const line = await copied.textContent();
  expect(JSON.parse(line)).toMatchObject({ custom_id: "request-1", method: "POST", url: "/v1/completions", body: { model: "llama-8b", max_tokens: 6 } });
  const response = await fetch(new URL("/v1/completions", process.env.CONSOLE), {
    method: "POST", headers: { Authorization: `Bearer ${process.env.API_KEY}`, "Content-Type": "application/json" }, body: JSON.stringify(JSON.parse(line).body),
  });
  expect(response.status).toBe(200);
});

test("the exported notebook runs, and the other files have all branches", async ({ page }) => {
  await open(page);
  await generate(page, "It's a \"notebook\" \\ test", { n: 2 });
  await page.getByText("Copy and export").click();
  const download = async (name) => {
    const [file] = await Promise.all([page.waitForEvent("download"), page.getByRole("button", { name }).click()]);
    return { name: file.suggestedFilename(), content: readFileSync(await file.path(), "utf8") };
  };
  const json = JSON.parse((await download("JSON file")).content);
  expect(json.branches).toHaveLength(3);
  expect(json.branches[0].text).toBe("It's a \"notebook\" \\ test");
  expect((await download("Markdown file")).content).toContain("It's a \"notebook\" \\ test");

  const notebook = await download("Jupyter notebook");
  expect(notebook.name).toBe("Workbench.ipynb");
  const code = JSON.parse(notebook.content).cells.filter((cell) => cell.cell_type === "code").map((cell) => cell.source.join("")).join("\n\n");
  const output = execFileSync("python3", ["-"], { input: code, encoding: "utf8", env: { ...process.env, BASEGATE_KEY: process.env.API_KEY, BASEGATE_URL: new URL(process.env.CONSOLE).origin } });
  expect(output).toMatch(/\d+ tokens, \d+\.\d\d bits/);
  expect(output).toMatch(/^ +\d+\.\d\d {2}'/m);
});

test("a tree goes to another gateway by a file, and back, without loss, also when it is dropped", async ({ page, browser }) => {
  test.skip(!process.env.CONSOLE_1, "there is no other gateway: DEMOS=2");
  await open(page);
  await generate(page, "Between two gateways", { n: 3, logprobs: 20 });
  await page.getByRole("button", { name: "Bookmark", exact: true }).click();
  const exported = async (tab) => {
    if (!(await tab.getByRole("button", { name: "Whole document" }).isVisible())) await tab.getByText("Copy and export").click();
    const [file] = await Promise.all([tab.waitForEvent("download"), tab.getByRole("button", { name: "Whole document" }).click()]);
    return readFileSync(await file.path(), "utf8");
  };
  const drop = async (tab, content) => {
    const transfer = await tab.evaluateHandle((text) => {
      const data = new DataTransfer();
      data.items.add(new File([text], "tree.workbench.json", { type: "application/json" }));
      return data;
    }, content);
    await tab.dispatchEvent("#bench", "drop", { dataTransfer: transfer });
    await expectText(tab, /^Between two gateways./);
  };
  const first = await exported(page);
  const n = process.env.TEST_PARALLEL_INDEX === "0" ? 1 : 0;
  const context = await browser.newContext({ baseURL: process.env[`CONSOLE_${n}`] });
  const other = await context.newPage();
  await signIn(other, process.env[`EMAIL_${n}`], process.env[`PASSWORD_${n}`]);
  await open(other);
  await drop(other, first);
  const second = await exported(other);
  expect(JSON.parse(second)).toEqual(JSON.parse(first));
  page.on("dialog", (dialog) => dialog.accept());
  await page.getByRole("button", { name: "New", exact: true }).click();
  await expectText(page, "");
  await drop(page, second);
  expect(JSON.parse(await exported(page))).toEqual(JSON.parse(first));
  await context.close();
});

test("a tree of Loom is opened, continued, and exported for Loom and Loomsidian", async ({ page }) => {
  const bodies = [];
  page.on("request", (request) => { if (request.url().includes("/api/completions")) bodies.push(request.postDataJSON()); });
  await open(page);
  const loom = { root: { id: "r", text: "", children: [{ id: "a", text: "The sea", children: [{ id: "b", text: " was calm.\nThe wind", children: [{ id: "c", text: " rose.", children: [], tags: ["bookmark"] }] }, { id: "d", text: " was wild.", children: [] }] }] }, selected_node_id: "c" };
  await page.getByText("Open", { exact: true }).click();
  await page.getByLabel("Open a file of “Whole document”, Loom or Loomsidian").setInputFiles({ name: "sea.json", mimeType: "application/json", buffer: Buffer.from(JSON.stringify(loom)) });
  await expectText(page, "The sea was calm.\nThe wind rose.");
  await page.locator("#p-max_tokens").fill("4");
  await page.locator("#settings").getByText("More parameters").click();
  await page.locator("#p-min_tokens").fill("4"); // a sampled text could be empty
  await page.locator("#generate").click();
  await expect(page.locator("#progress")).toContainText("completion tokens");
  await expectText(page, /^The sea was calm\.\nThe wind rose\.[^]/);
  expect(bodies[0].prompt.every(Number.isInteger)).toBe(true);
  const text = await prompt(page).evaluate((el) => el.value);
  await page.getByText("Copy and export").click();
  const download = async (name) => {
    const [file] = await Promise.all([page.waitForEvent("download"), page.getByRole("button", { name, exact: true }).click()]);
    return JSON.parse(readFileSync(await file.path(), "utf8"));
  };
  const { root } = await download("Loom");
  const texts = (node, before = "") => (node.children.length ? node.children.flatMap((child) => texts(child, before + node.text)) : [before + node.text]);
  expect(texts(root)).toEqual([text, "The sea was wild."]);
  const { nodes, current } = await download("Loomsidian");
  let whole = "";
  for (let id = current; id !== null; id = nodes[id].parentId) whole = nodes[id].text + whole;
  expect(whole).toBe(text);
  expect(Object.values(nodes).filter(({ bookmarked }) => bookmarked).map((node) => node.text)).toEqual([" rose."]);
});

test("a link opens the saved tree for a colleague, read-only, until it is revoked", async ({ page, browser }) => {
  const email = `colleague-${Date.now()}@example.org`;
  const link = basegate("account", "invite", email).match(/\S*\/invitation\/\S+/)[0];
  await open(page);
  await generate(page, "Shared with a colleague");
  const text = await tokens(page).allTextContents();
  await page.getByText("Share", { exact: true }).click();
  await expect(page.getByRole("button", { name: "Create link" })).toBeDisabled();
  await page.getByRole("textbox", { name: "Name", exact: true }).fill("For a colleague");
  await page.getByRole("button", { name: "Save", exact: true }).click();
  await expect(page.locator("#saved-status")).toHaveText(/^Saved \d\d:\d\d$/);
  await page.getByRole("button", { name: "Create link" }).click();
  await expect(page.locator("#share-link")).toHaveValue(/\/workbench\?shared=sh_/);
  const shared = new URL(await page.locator("#share-link").inputValue());
  await checkPage(page, "workbench-share");

  const context = await browser.newContext({ baseURL: process.env.CONSOLE });
  const other = await context.newPage();
  await other.goto(new URL(link).pathname);
  for (const field of await other.locator('input[type="password"]').all()) await field.fill("a long password of a colleague");
  await other.getByRole("main").getByRole("button").click();
  await expect(other).toHaveURL(/dashboard/);
  await open(other, shared.pathname + shared.search);
  await expect(other.locator("#shared-notice")).toContainText(`“For a colleague” is shared by ${process.env.EMAIL}`);
  await expect(tokens(other)).toHaveText(text);
  await other.getByRole("button", { name: "Save", exact: true }).click();
  await expect(other.locator("#saved-status")).toHaveText(/^Saved \d\d:\d\d$/);
  await expect(other).toHaveURL(/prompt=pr_/); // a prompt of their own
  await other.locator("#versions-panel > summary").click();
  await expect(other.locator("#origin")).toHaveText(`A copy of “For a colleague” of ${process.env.EMAIL}`);

  const listed = other.locator("#shared-prompts a", { hasText: "For a colleague" });
  await expect(listed).toHaveCount(0);
  await page.getByLabel("Share with everyone here").check();
  await page.getByText("Open", { exact: true }).click();
  await expect(page.locator("#saved li", { hasText: "For a colleague" })).toContainText("shared with everyone");
  await page.reload();
  await page.getByText("Share", { exact: true }).click();
  await expect(page.getByLabel("Share with everyone here")).toBeChecked();
  await open(other);
  await other.getByText("Open", { exact: true }).click();
  await expect(listed.locator("xpath=..")).toContainText(process.env.EMAIL);
  await checkPage(other, "workbench-shared-with-everyone");
  await listed.click();
  await expect(other).toHaveURL(shared.href);
  await expect(tokens(other)).toHaveText(text);

  await page.getByRole("button", { name: "Stop sharing" }).click();
  await expect(page.locator("#share-status")).toContainText("does not work any more");
  await open(other, shared.pathname + shared.search);
  await expect(other.locator("#error")).toContainText("This link does not work");
  await context.close();
});

test("the error of a prompt's link is not shown beside another prompt", async ({ page }) => {
  await open(page);
  await page.getByLabel("Prompt", { exact: true }).fill("Whose link fails");
  await page.getByRole("textbox", { name: "Name", exact: true }).fill("Whose link fails");
  await page.getByRole("button", { name: "Save", exact: true }).click();
  await expect(page.locator("#saved-status")).toHaveText(/^Saved \d\d:\d\d$/);
  await page.getByText("Share", { exact: true }).click();
  const requested = page.waitForRequest("**/console/api/prompts/*/share");
  let fail;
  const left = new Promise((resolve) => { fail = resolve; });
  await page.route("**/console/api/prompts/*/share", async (route) => { await left; await route.abort(); });
  await page.getByRole("button", { name: "Create link" }).click();
  await requested;
  await page.locator("#new").click();
  await expect(page.locator("#share-status")).toContainText("Save the prompt first");
  const refreshed = page.waitForResponse((response) => new URL(response.url()).pathname === "/console/api/prompts");
  fail();
  await refreshed; // which follows the error
  await expect(page.locator("#share-status")).toContainText("Save the prompt first");
});
