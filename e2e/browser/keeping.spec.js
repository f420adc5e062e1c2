// What is not saved is never lost: large trees, saves that fail, full disks, two tabs, and drafts of earlier versions.
import { readFileSync } from "node:fs";
import { expect, expectAccessible, signIn, test } from "./console.js";
import { expectText, lines, open, prompt, tokens } from "./workbench.js";

const status = (page) => page.locator("#saved-status");
const size = (page) => page.locator("#saved-size");

// draftsIn returns how many drafts and nodes of drafts the browser keeps.
const draftsIn = (page) => page.evaluate(() => new Promise((resolve) => {
  const opening = indexedDB.open("basegate-drafts");
  opening.onsuccess = () => {
    const tx = opening.result.transaction(["drafts", "nodes"]);
    const [drafts, nodes] = ["drafts", "nodes"].map((name) => tx.objectStore(name).count());
    tx.oncomplete = () => { opening.result.close(); resolve([drafts.result, nodes.result]); };
  };
}));

// stream returns a response with tokens for n choices, each with 20 alternatives of 64 bits.
function stream(n, each) {
  const events = [];
  for (let i = 0; i < each; i++) {
    for (let index = 0; index < n; index++) {
      const top = Object.fromEntries(Array.from({ length: 20 }, (_, k) => [`token_id:${1000 + (7 * i + k) % 100_000}`, -0.1 - k / 3 - i / 1e7]));
      const logprobs = { tokens: [`token_id:${1000 + 7 * i % 100_000}`], token_logprobs: [-0.1 - i / 1e7], top_logprobs: [top] };
      events.push(JSON.stringify({ choices: [{ index, text: ` ${index}.${i}`, finish_reason: i + 1 === each ? "length" : null, logprobs }] }));
    }
  }
  events.push(JSON.stringify({ choices: [], usage: { prompt_tokens: 4, completion_tokens: n * each } }), "[DONE]");
  return events.map((event) => `data: ${event}\n\n`).join("");
}

// generateLarge makes a tree of n branches with that many tokens each.
async function generateLarge(page, text, n, each) {
  await page.route("**/console/api/completions*", (route) => route.fulfill({ contentType: "text/event-stream", body: stream(n, each) }));
  await prompt(page).fill(text);
  await page.locator("#p-n").fill(String(n));
  await page.locator("#p-logprobs").fill("20");
  await page.getByRole("button", { name: "Generate" }).click();
  await expect(page.locator("#progress")).toContainText(`${(n * each).toLocaleString("en")} completion tokens`, { timeout: 120_000 });
  await page.unroute("**/console/api/completions*");
}

// leavingAsks reports whether the page asks before it is left.
const leavingAsks = (page) => page.evaluate(() => !dispatchEvent(new Event("beforeunload", { cancelable: true })));

async function save(page, name) {
  if (name) await page.getByRole("textbox", { name: "Name", exact: true }).fill(name);
  await page.getByRole("button", { name: "Save", exact: true }).click();
}

const restored = (page) => expect(page.locator("#progress")).toContainText("restored", { timeout: 120_000 });

// lastTokens goes to each of the branches, the first of which is selected, and expects its last token.
async function lastTokens(page, n, each) {
  await expect(prompt(page)).toContainText(` 0.${each - 1}`, { timeout: 120_000 });
  for (let index = n - 1; index >= 0 && n > 1; index--) {
    await lines(page).nth(index).click();
    await expect(prompt(page)).toContainText(` ${index}.${each - 1}`);
  }
}

// hold keeps back the responses to requests of a method. arrived resolves when the gateway has sent the first; release passes all on.
async function hold(page, url, method) {
  const held = {};
  held.arrived = new Promise((resolve) => { held.arrive = resolve; });
  held.released = new Promise((resolve) => { held.release = resolve; });
  await page.route(url, async (route) => {
    if (route.request().method() !== method) return route.fallback();
    const response = await route.fetch();
    held.arrive();
    await held.released;
    return route.fulfill({ response });
  });
  return held;
}

const nameField = (page) => page.getByRole("textbox", { name: "Name", exact: true });
const row = (page, name) => page.locator("#open-panel").getByRole("button", { name, exact: true });
const unique = (name) => `${name} ${Date.now()}`;

// saveAs saves a new prompt.
async function saveAs(page, name, text) {
  await prompt(page).fill(text);
  await save(page, name);
  await expect(status(page)).toHaveText(/^Saved \d\d:\d\d$/);
}

// startOver shows a new document.
async function startOver(page) {
  await page.getByRole("button", { name: "New", exact: true }).click();
  await expectText(page, "");
}

// answer answers the next dialogs of the page, and collects them.
function answer(page, method) {
  const asked = [];
  page.removeAllListeners("dialog");
  page.on("dialog", (dialog) => { asked.push(dialog.message()); dialog[method](); });
  return asked;
}

test.beforeEach(async ({ page }) => { await signIn(page); });

test("a tree of 20,000 tokens with 20 alternatives is kept through failed saves, saved, reloaded and edited in two tabs", async ({ page, context }) => {
  test.slow();
  const [n, each] = [4, 5000];
  await open(page);
  await generateLarge(page, "A very large tree", n, each);
  await expect(size(page)).toHaveText(/^[67]\.\d of 8 MB$/);

  // Saves that fail keep the draft, and say so.
  const name = `Large ${Date.now()}`;
  for (const [answer, text] of [
    [{ status: 413, contentType: "text/html", body: "<h1>413 Request Entity Too Large</h1>" }, /413\. Nothing is lost: the draft stays in this browser\. Export it to a file/],
    [{ status: 507, json: { error: { code: "storage_unavailable", message: "The disk is full." } } }, "The disk is full. Nothing is lost: the draft stays in this browser."],
    [{ status: 200, contentType: "text/html", body: "<h1>Sign in</h1>" }, "Nothing is lost: the draft stays in this browser."],
    [null, "The connection to the gateway was lost. Nothing is lost: the draft stays in this browser."],
  ]) {
    await page.route("**/console/api/prompts", (route) => (route.request().method() !== "POST" ? route.continue() : answer ? route.fulfill(answer) : route.abort()));
    await save(page, name);
    await expect(status(page)).toContainText(text);
    await page.unroute("**/console/api/prompts");
    expect(await draftsIn(page)).toEqual([1, 1 + n]);
  }
  await page.reload();
  await restored(page);
  await lastTokens(page, n, each);
  await expectAccessible(page);

  // What was saved is what was generated, and the draft is gone.
  await save(page, name);
  await expect(status(page)).toHaveText(/^Saved \d\d:\d\d$/);
  await expect.poll(() => draftsIn(page)).toEqual([0, 0]);
  await page.reload();
  await expect(page.locator("#bench[data-ready]")).toBeAttached();
  await expect(prompt(page)).toContainText(` 0.${each - 1}`);
  expect(await page.evaluate(() => {
    document.getElementById("bookmark").click();
    return !dispatchEvent(new Event("beforeunload", { cancelable: true }));
  })).toBe(true); // such a tree takes a moment to store, and is too large for what can be kept at once
  await lastTokens(page, n, each);
  await lines(page).nth(3).click();
  await tokens(page).last().click();
  await expect(page.locator("#token .alternatives li, #token tr").first()).toBeVisible();

  // Two tabs keep their own changes, and neither overwrites the other's.
  const second = await context.newPage();
  await open(second, page.url());
  await lastTokens(second, n, each);
  for (const [tab, text] of [[page, "Changed in the first tab"], [second, "Changed in the second tab"]]) {
    await prompt(tab).fill(text);
    await expect(status(tab)).toHaveText("Edited");
  }
  for (const [tab, text] of [[page, "Changed in the first tab"], [second, "Changed in the second tab"]]) {
    await expect.poll(() => leavingAsks(tab)).toBe(false);
    await tab.reload();
    await restored(tab);
    await expectText(tab, text);
  }
  await save(page);
  await expect(status(page)).toHaveText(/^Saved \d\d:\d\d$/);
  await save(second);
  await expect(status(second)).toHaveText(/^Saved \d\d:\d\d\. It was changed elsewhere meanwhile: Versions has both\.$/);
  await second.locator("#versions-panel > summary").click();
  for (const [version, text] of [[2, "Changed in the first tab"], [3, "Changed in the second tab"]]) {
    await second.getByRole("button", { name: `Version ${version}`, exact: true }).click();
    await expectText(second, text);
  }
  await second.getByRole("treeitem", { name: /A very large tree/ }).click();
  await lines(second).first().click();
  await lastTokens(second, n, each);
  expect(second.url()).toBe(page.url());
});

test("a save after the session has ended keeps the draft, and saves it after signing in again", async ({ page, context }) => {
  await open(page);
  await prompt(page).fill("Saved after signing in again");
  await expect(status(page)).toHaveText("Edited");
  await expect.poll(() => draftsIn(page)).toEqual([1, 1]);
  await context.clearCookies({ name: "basegate" });
  const dialog = page.getByRole("dialog", { name: "Your session has ended" });
  await save(page, unique("Session"));
  await dialog.getByRole("button", { name: "Cancel" }).click();
  await expect(status(page)).toContainText("Nothing is lost: the draft stays in this browser.");
  expect(await draftsIn(page)).toEqual([1, 1]);
  await save(page);
  await dialog.getByLabel("Password").fill(process.env.PASSWORD);
  await dialog.getByRole("button", { name: "Sign in and continue" }).click();
  await expect(status(page)).toHaveText(/^Saved \d\d:\d\d$/);
  await expect.poll(() => draftsIn(page)).toEqual([0, 0]);
});

test("a browser without room for the draft says so, and the draft is kept once there is room", async ({ page, context }) => {
  await open(page);
  const cdp = await context.newCDPSession(page);
  const { origin } = new URL(page.url());
  await cdp.send("Storage.overrideQuotaForOrigin", { origin, quotaSize: 1 });
  await generateLarge(page, "No room for this", 1, 1000);
  await expect(page.locator("#draft-status")).toContainText("no room for the draft. Nothing is lost while this page is open");
  await expect(page.getByRole("button", { name: "Export to a file" })).toBeVisible();
  await cdp.send("Storage.overrideQuotaForOrigin", { origin });
  await prompt(page).press("Control+End");
  await page.keyboard.type(" until now");
  await expect(page.locator("#draft-status")).toBeEmpty();
  await page.reload();
  await expectText(page, /^No room for this.* until now$/s);
  await lastTokens(page, 1, 1000);
});

test("a document that is too large to save is exported to a file, which the workbench opens again", async ({ page }) => {
  await page.route("**/workbench", async (route) => {
    const response = await route.fetch();
    await route.fulfill({ response, body: (await response.text()).replace(/data-max-bytes="\d+"/, 'data-max-bytes="200000"') });
  });
  await open(page);
  await generateLarge(page, "Too large", 2, 500);
  await expect(size(page)).toContainText("of 0.2 MB: too large to save. Export it to a file.");
  await save(page, "Too large");
  await expect(status(page)).toContainText("MB can be saved. Nothing is lost: the draft stays in this browser. Export it to a file, which the workbench can open again.");
  expect(await draftsIn(page)).toEqual([1, 3]);
  const downloading = page.waitForEvent("download");
  await page.getByRole("button", { name: "Export to a file" }).click();
  const path = await (await downloading).path();
  const { document } = JSON.parse(readFileSync(path, "utf8"));
  expect(document.tree.nodes).toHaveLength(3);
  page.on("dialog", (dialog) => dialog.accept());
  await page.getByRole("button", { name: "New", exact: true }).click();
  await expectText(page, "");
  await page.getByText("Open", { exact: true }).click();
  await page.getByLabel("Open a file of “Whole document”, Loom or Loomsidian").setInputFiles({ name: "large.workbench.json", mimeType: "application/json", buffer: readFileSync(path) });
  await lastTokens(page, 2, 500);
  await expect(page.getByRole("textbox", { name: "Name", exact: true })).toHaveValue("Too large");
  await page.reload();
  await lastTokens(page, 2, 500);
  await page.getByText("Open", { exact: true }).click();
  await page.getByLabel("Open a file of “Whole document”, Loom or Loomsidian").setInputFiles({ name: "x.json", mimeType: "application/json", buffer: Buffer.from("[]") });
  await expect(page.locator("#error")).toContainText("This is not a document of the workbench.");
  await lastTokens(page, 2, 500);
});

test("drafts of an earlier version of the workbench are taken over", async ({ page }) => {
  const draft = (text) => JSON.stringify({
    prompt: text, message: "", model: "llama-8b", settings: { max_tokens: 9 }, chat: {}, name: "Old", version: 0, time: Date.now(),
    tree: { format: 1, nodes: [{ id: "root", parent: null, at: 0, text, model: null, tokens: [], made: null, finish: null }], selected: "root", next: 1 },
  });
  await page.goto("/dashboard");
  await page.evaluate(([key, text, other]) => {
    localStorage.setItem(`${key}:new`, text);
    localStorage.setItem(`${key}:new#3`, other);
  }, [`basegate-draft:${process.env.EMAIL}`, draft("Of the earlier version"), draft("Of another tab")]);
  await open(page);
  await expect(page.locator("#progress")).toContainText("restored");
  await expect(page.locator("#p-max_tokens")).toHaveValue("9");
  await expect.poll(() => draftsIn(page)).toEqual([2, 2]);
  expect(await page.evaluate(() => Object.keys(localStorage).filter((key) => key.startsWith("basegate-draft")))).toEqual([]);
});

test("edits in a tab that another one has taken over are kept beside it", async ({ page, context }) => {
  await context.addInitScript(() => { Object.defineProperty(Navigator.prototype, "locks", { value: undefined }); }); // as by HTTP from another machine
  await open(page);
  await prompt(page).fill("Of the first tab");
  await expect.poll(() => draftsIn(page)).toEqual([1, 1]);
  const second = await context.newPage();
  await open(second);
  await expectText(second, "Of the first tab");
  await prompt(second).fill("Of the second tab");
  await prompt(page).fill("Of the first tab, and more");
  await expect.poll(() => draftsIn(page)).toEqual([2, 2]);
  await prompt(second).fill("Of the second tab, and more");
  await second.goto("/usage"); // stores it
  await second.close();
  await page.close();
  for (const [text, left] of [["Of the second tab, and more", 1], ["Of the first tab, and more", 0]]) {
    const next = await context.newPage();
    await open(next);
    await expectText(next, text);
    next.on("dialog", (dialog) => dialog.accept());
    await next.getByRole("button", { name: "New", exact: true }).click();
    await expect.poll(() => draftsIn(next)).toEqual([left, left]);
    await next.close();
  }
});

test("no other document is shown while a prompt is being saved", async ({ page }) => {
  const [other, name] = [unique("Other"), unique("Slow")];
  await open(page);
  await saveAs(page, other, "The other prompt");
  await startOver(page);
  await page.getByText("Open", { exact: true }).click();
  await prompt(page).fill("Saved on a slow link");
  const asked = answer(page, "accept");
  const held = await hold(page, "**/console/api/prompts", "POST");
  await save(page, name);
  await held.arrived;
  for (const choose of [
    () => page.getByRole("button", { name: "New", exact: true }).click(),
    () => row(page, other).click(),
    () => page.getByLabel("Open a file of “Whole document”, Loom or Loomsidian").setInputFiles({ name: "x.json", mimeType: "application/json", buffer: Buffer.from("[]") }),
  ]) {
    await status(page).evaluate((el) => { el.textContent = ""; });
    await choose();
    await expect(status(page)).toHaveText("The prompt is being saved. Try again when it has been saved.");
    await expectText(page, "Saved on a slow link");
  }
  expect(asked).toEqual([]);
  held.release();
  await expect(status(page)).toHaveText(/^Saved \d\d:\d\d$/);
  await startOver(page);
  await prompt(page).fill("Another text");
  const saving = page.waitForRequest((request) => /\/console\/api\/prompts/.test(request.url()) && request.method() !== "GET");
  await save(page, unique("Another"));
  expect((await saving).method()).toBe("POST");
  await expect(status(page)).toHaveText(/^Saved \d\d:\d\d$/);
});

test("a save that is answered after its prompt was deleted does not open the prompt again", async ({ page }) => {
  const name = unique("Deleted");
  await open(page);
  await saveAs(page, name, "To be deleted");
  answer(page, "accept");
  const held = await hold(page, "**/console/api/prompts/*", "PUT");
  await prompt(page).fill("To be deleted, and changed");
  await save(page);
  await held.arrived;
  await page.getByText("Open", { exact: true }).click();
  await page.getByRole("button", { name: `Delete ${name}` }).click();
  await expect(row(page, name)).toHaveCount(0);
  await expect(status(page)).toContainText("deleted");
  const refreshed = page.waitForRequest("**/console/api/prompts?q=");
  held.release();
  await refreshed; // the save has ended
  await expect(status(page)).toContainText("deleted");
  await expect(page).not.toHaveURL(/prompt=/);
  const saving = page.waitForRequest((request) => /\/console\/api\/prompts/.test(request.url()) && ["POST", "PUT"].includes(request.method()));
  await save(page, unique("Kept"));
  expect((await saving).method()).toBe("POST");
  await expect(status(page)).toHaveText(/^Saved \d\d:\d\d$/);
});

test("the address leads to the open prompt until it is deleted itself, and then what is shown of it is kept as a draft", async ({ page }) => {
  const [other, name] = [unique("Other"), unique("Open")];
  await open(page);
  await saveAs(page, other, "The other prompt");
  await startOver(page);
  await saveAs(page, name, "The open prompt");
  const address = page.url();
  expect(address).toContain("?prompt=");
  await page.getByText("Open", { exact: true }).click();
  answer(page, "accept");
  const remove = async (deleted) => {
    await page.getByRole("button", { name: `Delete ${deleted}` }).click();
    await expect(row(page, deleted)).toHaveCount(0);
    await expect(status(page)).toHaveText(`“${deleted}” deleted.`);
  };
  await remove(other);
  expect(page.url()).toBe(address);
  await prompt(page).fill("The open prompt, changed");
  await expect.poll(() => draftsIn(page)).toEqual([1, 1]);
  await remove(name);
  expect(page.url()).not.toContain("prompt=");
  await page.reload();
  await restored(page);
  await expectText(page, "The open prompt, changed");
});

test("what is typed while another prompt is loading is not discarded without asking", async ({ page }) => {
  const other = unique("Loading");
  await open(page);
  await saveAs(page, other, "The other prompt");
  await startOver(page);
  await prompt(page).fill("Before");
  const held = await hold(page, "**/console/api/prompts/*", "GET");
  await page.getByText("Open", { exact: true }).click();
  let asked = answer(page, "accept");
  await row(page, other).click();
  await held.arrived;
  expect(asked).toHaveLength(1);
  await prompt(page).fill("Typed meanwhile");
  asked = answer(page, "dismiss");
  held.release();
  await expect.poll(() => asked.length).toBe(1);
  await expectText(page, "Typed meanwhile");
  await expect(nameField(page)).toHaveValue("");
  await page.reload();
  await restored(page);
  await expectText(page, "Typed meanwhile");

  asked = answer(page, "accept"); // without changes meanwhile, it asks once
  await page.getByText("Open", { exact: true }).click();
  await row(page, other).click();
  await expectText(page, "The other prompt");
  expect(asked).toHaveLength(1);
  await expect.poll(() => draftsIn(page)).toEqual([0, 0]);
});

test("a generation that begins while another prompt is loading goes on in its own document", async ({ page }) => {
  const other = unique("Loading");
  await open(page);
  await saveAs(page, other, "The other prompt");
  await startOver(page);
  const held = await hold(page, "**/console/api/prompts/*", "GET");
  const generation = await hold(page, "**/console/api/completions*", "POST");
  await page.getByText("Open", { exact: true }).click();
  await row(page, other).click();
  await held.arrived;
  answer(page, "accept");
  await prompt(page).fill("Of this document");
  await page.locator("#p-max_tokens").fill("8");
  await page.getByRole("button", { name: "Generate" }).click();
  await generation.arrived;
  held.release();
  await expect(status(page)).toContainText("A request is running.");
  await expectText(page, "Of this document");
  generation.release();
  await expect(page.locator("#progress")).toContainText("completion tokens");
  await expect(prompt(page)).toContainText("Of this document");
});

test("of two documents that the user asks for, the last one is shown", async ({ page }) => {
  const [first, last] = [unique("First"), unique("Last")];
  await open(page);
  await saveAs(page, last, "The last one");
  await startOver(page);
  await saveAs(page, first, "The first one");
  const url = `**/console/api/prompts/${new URL(page.url()).searchParams.get("prompt")}`;
  await startOver(page);
  const held = await hold(page, url, "GET");
  await page.getByText("Open", { exact: true }).click();
  await row(page, first).click();
  await held.arrived;
  await page.getByText("Open", { exact: true }).click(); // it closed when the first was chosen
  await row(page, last).click();
  await expectText(page, "The last one");
  const answered = page.waitForResponse(url);
  held.release();
  await (await answered).finished();
  await page.evaluate(async () => { await (await fetch("/workbench")).text(); }); // takes longer than to show the answer
  await page.reload();
  await expectText(page, "The last one");
});

test("a draft that is discarded while it is being stored is not kept as another one", async ({ page }) => {
  await open(page);
  await prompt(page).fill("To be discarded");
  await expect.poll(() => draftsIn(page)).toEqual([1, 1]);
  await page.evaluate(() => {
    window.confirm = () => true;
    const { get } = IDBObjectStore.prototype;
    IDBObjectStore.prototype.get = function (...args) {
      IDBObjectStore.prototype.get = get;
      const request = get.apply(this, args);
      document.getElementById("new").click();
      return request;
    };
  });
  await prompt(page).fill("To be discarded, and more");
  await expectText(page, "");
  await expect.poll(() => draftsIn(page)).toEqual([0, 0]);
  await page.reload();
  await expect(page.locator("#bench[data-ready]")).toBeAttached();
  await expectText(page, "");
});
