import { basegate, expect, expectAccessible, signIn, test } from "./console.js";
import { chooseKey, closeTab, done, event, expectText, generate, generateAll, open, prompt, setMinTokens, tokens } from "./workbench.js";

// draftsIn returns the drafts that the browser keeps.
const draftsIn = (page) => page.evaluate(() => new Promise((resolve, reject) => {
  const opening = indexedDB.open("basegate-drafts");
  opening.onerror = () => reject(opening.error);
  opening.onsuccess = () => {
    const db = opening.result;
    if (!db.objectStoreNames.contains("drafts")) { db.close(); resolve([]); return; }
    const tx = db.transaction(["drafts", "nodes"]);
    const [drafts, nodes] = ["drafts", "nodes"].map((name) => tx.objectStore(name).getAll());
    tx.oncomplete = () => {
      db.close();
      resolve(drafts.result.map(({ id, selected }) => { // the prompt of the branch that is shown
        const find = (wanted) => nodes.result.find((node) => node.draft === id && node.id === wanted);
        let node = find(selected);
        while (node.parent !== null) node = find(node.parent);
        return node.text;
      }));
    };
  };
}));

test.beforeEach(async ({ page }) => { await signIn(page); });

test("a reload keeps the prompt, its branches and the parameters, and signing out deletes them", async ({ page }) => {
  await open(page);
  await page.locator("#p-seed").fill("77");
  await generate(page, "A draft that stays");
  await done(page);
  const text = await tokens(page).allTextContents();
  await prompt(page).press("Control+End");
  await page.keyboard.type(" And more");
  await page.reload();
  await expect(page.locator("#progress")).toContainText("restored");
  await expectText(page, /^A draft that stays.* And more$/s);
  expect((await tokens(page).allTextContents()).slice(0, text.length)).toEqual(text);
  await expect(page.locator("#p-seed")).toHaveValue("77");
  await expectAccessible(page);
  await page.getByText(process.env.EMAIL, { exact: true }).click();
  await page.getByRole("button", { name: "Sign out" }).click();
  await expect(page).toHaveURL(/sign-in/);
  expect(await draftsIn(page)).toEqual([]);
  await signIn(page);
  await open(page);
  await expectText(page, "");
});

test("what was typed while the browser was slow to store a draft is kept through a reload", async ({ page }) => {
  await open(page);
  await prompt(page).fill("A slow disk");
  await expect.poll(async () => (await draftsIn(page)).includes("A slow disk")).toBe(true);
  await page.evaluate(() => new Promise((resolve) => { // nothing is stored until window.release is called
    const opening = indexedDB.open("basegate-drafts");
    opening.onsuccess = () => {
      const tx = opening.result.transaction(["drafts", "nodes"], "readwrite");
      const hold = () => { if (!window.released) tx.objectStore("drafts").count().onsuccess = hold; else opening.result.close(); };
      window.release = () => { window.released = true; };
      hold();
      resolve();
    };
  }));
  await prompt(page).press("Control+End");
  await page.keyboard.type(" stores");
  await page.evaluate(() => new Promise((resolve) => { setTimeout(resolve, 700); })); // storing this has begun, and waits
  await page.keyboard.type(" late");
  await page.evaluate(() => {
    dispatchEvent(new Event("beforeunload", { cancelable: true }));
    window.release();
  });
  await expect.poll(async () => (await draftsIn(page)).some((text) => text.startsWith("A slow disk stores"))).toBe(true);
  await page.reload();
  await expectText(page, "A slow disk stores late");
});

test("a session that ended asks for the password and then generates", async ({ page }) => {
  await open(page);
  await setMinTokens(page, 8); // what is sampled may end at once
  await page.context().clearCookies({ name: "basegate" });
  await generate(page, "Signed out in between");
  const dialog = page.getByRole("dialog", { name: "Your session has ended" });
  await dialog.getByLabel("Password").fill(process.env.PASSWORD);
  await dialog.getByRole("button", { name: "Sign in and continue" }).click();
  await done(page);
  await expectText(page, /^Signed out in between[^]/);
});

test("a lost connection keeps what was typed and says what to do", async ({ page }) => {
  await open(page);
  await generateAll(page, "The first text");
  await done(page);
  const text = await tokens(page).allTextContents();
  await page.context().setOffline(true);
  await page.locator("#generate").click();
  await expect(page.locator("#error")).toContainText("The connection to the gateway was lost. Check your connection and try again.");
  await expectText(page, /^The first text[^]/);
  await page.context().setOffline(false);
  await expect(tokens(page)).toHaveText(text);
  await page.locator("#generate").click();
  await done(page);
  await expect(page.locator("#error")).toBeEmpty();
});

test("a backend that dies in the middle of a generation leaves the text so far, from which the user continues", async ({ page }) => {
  let requests = 0;
  await page.route("**/console/api/completions*", (route) => {
    if (requests++ > 0) return route.continue();
    const error = { error: { code: "upstream_stream_interrupted", message: "the backend failed during the response", type: "api_error", param: null } };
    return route.fulfill({ contentType: "text/event-stream", body: `${event(" one", 100)}${event(" two", 101)}data: ${JSON.stringify(error)}\n\n` });
  });
  await open(page);
  await generate(page, "Count:");
  await expect(page.locator("#error")).toContainText("The text generated so far is kept.");
  await expect(prompt(page)).toContainText("Count:");
  await page.reload();
  await expect(tokens(page).last()).toBeVisible();
  const before = await tokens(page).count();
  await page.locator("#generate").click();
  await done(page);
  expect(await tokens(page).count()).toBeGreaterThan(before);
});

test("a used-up budget says when it resets, and keeps what was typed", async ({ page }) => {
  basegate("key", "create", "--account", process.env.EMAIL, "--name", "drained", "--monthly-budget", "3");
  await open(page);
  await chooseKey(page, "drained");
  await generate(page, "More tokens than three, surely, in this prompt");
  await expect(page.locator("#error")).toContainText(/Key’s monthly budget: 0 of 3 tokens used.* Resets 1 /);
  await expectText(page, "More tokens than three, surely, in this prompt");
});

// startSlowly begins a generation of many tokens, and waits until some have arrived.
async function startSlowly(page, text) {
  await page.locator("#p-seed").fill("5");
  await generate(page, text, 3000);
  await expect.poll(() => tokens(page).count()).toBeGreaterThan(20);
}

test("a reload in the middle of a generation keeps the text so far, from which the user continues", async ({ page }) => {
  await open(page);
  await startSlowly(page, "Count for ever: 1, 2, 3,");
  const before = await tokens(page).allTextContents();
  await page.reload();
  await expect(page.locator("#progress")).toContainText("restored");
  const after = await tokens(page).allTextContents();
  expect(after.length).toBeGreaterThanOrEqual(before.length);
  expect(after.slice(0, before.length - 2)).toEqual(before.slice(0, before.length - 2));
  await page.locator("#p-max_tokens").fill("5");
  await page.locator("#generate").click();
  await done(page);
  expect(await tokens(page).count()).toBeGreaterThan(after.length); // tokens that are parts of a character are one
});

test("a connection that is lost in the middle of a generation leaves the text so far", async ({ page }) => {
  await open(page);
  await page.evaluate((events) => {
    const fetched = window.fetch;
    window.fetch = (input, options) => {
      if (!String(input).includes("/console/api/completions")) return fetched(input, options);
      window.fetch = fetched;
      const body = new ReadableStream({ start(controller) {
        controller.enqueue(new TextEncoder().encode(events));
        const received = setInterval(() => {
          if (!document.getElementById("prompt").textContent.includes("five")) return;
          clearInterval(received);
          controller.error(new TypeError("network error"));
        }, 20);
      } });
      return Promise.resolve(new Response(body, { headers: { "Content-Type": "text/event-stream" } }));
    };
  }, event(" four", 400) + event(" five", 401));
  await generate(page, "One, two, three,");
  await expect(page.locator("#error")).toContainText("The connection to the gateway was lost. Check your connection and try again. The text generated so far is kept.");
  await expect(prompt(page)).toContainText("One, two, three, four five");
  await page.reload();
  await expect(prompt(page)).toContainText("One, two, three, four five");
});

for (const [name, status, code, text] of [
  ["a key that is paused", 401, "invalid_api_key", "The key is not valid: it may be paused, expired or revoked. Choose another key, or create one on the dashboard."],
  ["a busy gateway", 503, "overloaded", "The gateway is busy. Try again in 7 seconds."],
  ["a model whose backends do not respond", 502, "upstream_unreachable", "The model’s servers do not respond. Try again in 7 seconds."],
  ["too many requests", 429, "rate_limited", "The request failed. Try again in 7 seconds."],
]) {
  test(`${name} says what to do, and keeps what was typed and generated`, async ({ page }) => {
    await open(page);
    await generateAll(page, "Kept in any case"); // what is sampled may end at once
    await done(page);
    const kept = await tokens(page).allTextContents();
    await page.route("**/console/api/completions*", (route) => route.fulfill({
      status, headers: { "Retry-After": "7", "Content-Type": "application/json" },
      body: JSON.stringify({ error: { code, message: "The request failed.", type: "error", param: null, request_id: "req_1" } }),
    }));
    await page.locator("#generate").click();
    await expect(page.locator("#error")).toContainText(text);
    await expect(page.locator("#error")).toContainText("req_1");
    await expectText(page, /^Kept in any case[^]/);
    await expect(tokens(page)).toHaveText(kept);
    await page.unroute("**/console/api/completions*");
    await page.locator("#generate").click();
    await done(page);
  });
}

// theirs is the response to a colleague's link.
const theirs = () => ({ json: {
  name: "Theirs", model: "llama-8b", owner: "eve@example.org", updated: new Date().toISOString(),
  document: { tree: { format: 1, nodes: [{ id: "root", parent: null, at: 0, text: "Their prompt", model: null, tokens: [], made: null, finish: null }], selected: "root", next: 1 }, settings: {} },
} });

test("a link of a colleague does not replace the draft of one's own", async ({ page }) => {
  await open(page);
  await prompt(page).fill("My own draft");
  await page.route("**/console/api/shared/*", (route) => route.fulfill(theirs()));
  await page.goto("/workbench?shared=sh_1");
  await expectText(page, "Their prompt");
  await prompt(page).fill("Their prompt, changed");
  await page.reload();
  await expectText(page, "Their prompt, changed");
  await open(page);
  await expectText(page, "My own draft");
});

test("a workbench that opens while the gateway cannot be reached waits for it, and keeps the drafts", async ({ page }) => {
  await open(page);
  await prompt(page).fill("My own draft");
  let reachable = false;
  for (const path of ["workbench", "shared/sh_1"]) {
    let failures = 0;
    await page.route(`**/console/api/${path}`, (route) => (failures++ < 2 || !reachable ? route.abort() : path === "workbench" ? route.continue() : route.fulfill(theirs())));
  }
  await page.goto("/workbench?shared=sh_1");
  await expect(page.locator("#error")).toContainText("The connection to the gateway was lost.");
  reachable = true;
  await expectText(page, "Their prompt");
  await expect(page.locator("#error")).toBeEmpty();
  await open(page);
  await expectText(page, "My own draft");
});

test("two tabs keep a draft each, and the next tab finds that of a closed one", async ({ page, context }) => {
  await open(page);
  await prompt(page).fill("In the first tab");
  const second = await context.newPage();
  await open(second);
  await expectText(second, "");
  await prompt(second).fill("In the second tab");
  for (const [tab, text] of [[page, "In the first tab"], [second, "In the second tab"]]) {
    await tab.reload();
    await expect(tab.locator("#progress")).toContainText("restored");
    await expectText(tab, text);
  }
  await closeTab(second);
  const third = await context.newPage();
  await open(third);
  await expectText(third, "In the second tab");
  third.on("dialog", (dialog) => dialog.accept());
  await third.evaluate(() => { document.getElementById("new").click(); location.reload(); }); // before the browser has deleted it
  await third.waitForEvent("load");
  await expect(third.locator("#bench[data-ready]")).toBeAttached(); // or it takes over the draft of the tab that is loaded again next
  await expectText(third, "");
  await page.reload();
  await expectText(page, "In the first tab");
});

test("a tab whose lock is released late finds its draft after a reload", async ({ page, context }) => {
  await open(page);
  await prompt(page).fill("Of the reloaded tab");
  const lock = await page.evaluate(() => sessionStorage.getItem("basegate-workbench-tab"));
  const other = await context.newPage();
  await other.goto("/dashboard");
  await other.evaluate((name) => { // gets the lock when the tab is left, and keeps it for a while
    navigator.locks.request(name, () => new Promise((release) => { setTimeout(release, 3000); }));
  }, lock);
  await page.reload();
  await expect(page.locator("#progress")).toContainText("restored");
  await expectText(page, "Of the reloaded tab");
  expect(await page.evaluate(() => sessionStorage.getItem("basegate-workbench-tab"))).toBe(lock);
});

test("a new tab shows the newest draft of the closed ones, and the next one the other", async ({ page, context }) => {
  const second = await context.newPage();
  await open(page);
  await open(second);
  for (const [tab, text] of [[page, "The older one"], [second, "The newest one"]]) {
    await prompt(tab).fill(text);
    await tab.goto("/usage"); // stores it
  }
  await closeTab(second);
  const third = await context.newPage(); // the first tab is on another page, and keeps its draft
  await open(third);
  await expectText(third, "The newest one");
  await third.goto("/usage");
  for (const tab of [page, third]) await closeTab(tab);
  for (const text of ["The newest one", "The older one"]) {
    const next = await context.newPage();
    await open(next);
    await expectText(next, text);
  }
});

test("a tab that shows another page keeps its draft", async ({ page, context }) => {
  await open(page);
  await prompt(page).fill("In the first tab");
  await page.goto("/usage");
  const second = await context.newPage();
  await open(second);
  await expectText(second, "");
  await open(page);
  await expectText(page, "In the first tab");
});

test("signing out in one tab ends the drafts of the others until they sign in again", async ({ page, context }) => {
  const second = await context.newPage();
  const drafts = () => draftsIn(second);
  const signOut = async () => {
    await second.goto("/usage");
    await second.getByRole("banner").getByText(process.env.EMAIL, { exact: true }).click();
    await second.getByRole("button", { name: "Sign out" }).click();
    await expect(second).toHaveURL(/sign-in/);
    await prompt(page).fill("In the first tab, signed out");
    await page.evaluate(() => dispatchEvent(new Event("pagehide")));
    expect(await drafts()).toEqual([]);
  };
  await open(page);
  await prompt(page).fill("In the first tab");
  await signOut();
  await page.getByRole("button", { name: "Generate" }).click();
  const dialog = page.getByRole("dialog", { name: "Your session has ended" });
  await dialog.getByLabel("Password").fill(process.env.PASSWORD);
  await dialog.getByRole("button", { name: "Sign in and continue" }).click();
  await done(page);
  await expect.poll(drafts).toEqual(["In the first tab, signed out"]);

  await signOut();
  await signIn(second);
  await prompt(page).fill("In the first tab, signed in by the second");
  await expect.poll(drafts).toEqual(["In the first tab, signed in by the second"]);
});

test("a save that fails after signing out in another tab does not say that the draft is kept, until it is again", async ({ page, context }) => {
  await open(page);
  await prompt(page).fill("Kept nowhere");
  await expect.poll(() => draftsIn(page)).toEqual(["Kept nowhere"]);
  const second = await context.newPage();
  await second.goto("/usage");
  await second.getByRole("banner").getByText(process.env.EMAIL, { exact: true }).click();
  await second.getByRole("button", { name: "Sign out" }).click();
  await expect(second).toHaveURL(/sign-in/);
  await page.route("**/console/api/prompts", (route) => (route.request().method() === "POST" ? route.abort() : route.continue()));
  await page.getByRole("textbox", { name: "Name", exact: true }).fill("Kept nowhere");
  await page.getByRole("button", { name: "Save", exact: true }).click();
  await expect(page.locator("#saved-status")).toContainText("This browser does not keep the draft");
  await signIn(second);
  await expect.poll(() => draftsIn(page)).toEqual(["Kept nowhere"]);
  await page.getByRole("button", { name: "Save", exact: true }).click();
  await expect(page.locator("#saved-status")).toContainText("the draft stays in this browser");
});

test("leaving asks after signing out in another tab, which has removed the draft, and not after signing out here", async ({ page, context }) => {
  const asks = () => page.evaluate(() => !dispatchEvent(new Event("beforeunload", { cancelable: true })));
  await open(page);
  await prompt(page).fill("Removed by another tab");
  await expect.poll(() => draftsIn(page)).toEqual(["Removed by another tab"]);
  expect(await asks()).toBe(false);
  const second = await context.newPage();
  await second.goto("/usage");
  await second.getByRole("banner").getByText(process.env.EMAIL, { exact: true }).click();
  await second.getByRole("button", { name: "Sign out" }).click();
  await expect(second).toHaveURL(/sign-in/);
  await expect.poll(asks).toBe(true);
  await signIn(second);
  await expect.poll(() => draftsIn(page)).toEqual(["Removed by another tab"]);
  await expect.poll(asks).toBe(false);

  const dialogs = [];
  page.on("dialog", (dialog) => { dialogs.push(dialog.type()); dialog.accept(); });
  await page.getByRole("banner").getByText(process.env.EMAIL, { exact: true }).click();
  await page.getByRole("button", { name: "Sign out" }).click();
  await expect(page).toHaveURL(/sign-in/);
  expect(dialogs).toEqual([]);
});

// A change of the network, such as the start of a container, aborts requests of Chromium.
test("a workbench of which a script could not be loaded is loaded again, once", async ({ page }) => {
  await open(page);
  await prompt(page).fill("My own draft");
  let most = 1;
  let failures = 0;
  await page.route("**/static/*/workbench/page.js", (route) => (failures < most ? (failures++, route.abort()) : route.continue()));
  await open(page);
  await expectText(page, "My own draft");
  expect(failures).toBe(1);
  most = Infinity;
  await page.reload();
  await expect(page.getByRole("alert").filter({ hasText: "A part of this page could not be loaded." })).toBeVisible();
  most = 0;
  await page.reload();
  await expectText(page, "My own draft");
});

test("what is typed before the prompt of a link arrives does not replace the draft of one's own", async ({ page }) => {
  await open(page);
  await prompt(page).fill("My own draft");
  const requested = page.waitForRequest("**/console/api/shared/*");
  await page.route("**/console/api/shared/*", () => {}); // it never arrives
  await page.goto("/workbench?shared=sh_1");
  await requested;
  await prompt(page).click();
  await page.keyboard.type("Too early");
  await open(page);
  await expectText(page, "My own draft");
});

test("what is typed after a link has failed does not replace the draft of one's own", async ({ page }) => {
  await open(page);
  await prompt(page).fill("My own draft");
  await page.goto("/workbench?shared=sh_1");
  await expect(page.locator("#error")).toContainText("This link does not work");
  await prompt(page).fill("Instead of theirs");
  await page.reload();
  await expect(page.locator("#progress")).toContainText("restored");
  await expectText(page, "Instead of theirs");
  await open(page);
  await expectText(page, "My own draft");
});

test("saving after a prompt that could not be opened does not replace it", async ({ page }) => {
  await open(page);
  await prompt(page).fill("Of a later version");
  const name = `Later ${Date.now()}`;
  await page.getByRole("textbox", { name: "Name", exact: true }).fill(name);
  await page.getByRole("button", { name: "Save", exact: true }).click();
  await expect(page.locator("#saved-status")).toHaveText(/^Saved \d\d:\d\d$/);
  await page.route("**/console/api/prompts/*", async (route) => {
    if (route.request().method() !== "GET") return route.continue();
    const response = await route.fetch();
    const saved = await response.json();
    saved.document.tree.format = 99;
    return route.fulfill({ response, json: saved });
  });
  await open(page);
  await page.getByText("Open", { exact: true }).click();
  await page.locator("#open-panel").getByRole("button", { name, exact: true }).click();
  await expect(page.getByText("This was saved by another version of the workbench")).toBeVisible();
  await prompt(page).fill("Another text");
  await page.getByRole("textbox", { name: "Name", exact: true }).fill("Not the same");
  const saving = page.waitForRequest((request) => /\/console\/api\/prompts/.test(request.url()) && request.method() !== "GET");
  await page.getByRole("button", { name: "Save", exact: true }).click();
  expect((await saving).method()).toBe("POST");
});
