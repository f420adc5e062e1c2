import { mkdtempSync, readFileSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { basegate, checkPage, expect, expectNoOverflow, signIn, test } from "./console.js";

// lines returns an input file of n lines.
function lines(n, body = {}) {
  return Array.from({ length: n }, (_, i) => JSON.stringify({
    custom_id: `line-${i}`, method: "POST", url: "/v1/completions",
    body: { model: "llama-8b", prompt: `A private prompt ${i}:`, max_tokens: 2, ...body },
  })).join("\n") + "\n";
}

// drop drops a file on the page.
async function drop(page, name, text) {
  const transfer = await page.evaluateHandle(([n, t]) => {
    const data = new DataTransfer();
    data.items.add(new File([t], n));
    return data;
  }, [name, text]);
  await page.dispatchEvent("main", "dragover", { dataTransfer: transfer });
  await page.dispatchEvent("main", "drop", { dataTransfer: transfer });
}

async function download(page, link) {
  const [file] = await Promise.all([page.waitForEvent("download"), link.click()]);
  return readFileSync(await file.path(), "utf8");
}

const wrong = `${lines(1)}not JSON\n${lines(1, { temperature: "a private prompt" }).replace("line-0", "other")}`;

test("a file is dropped, mended, run, watched and downloaded", async ({ page }) => {
  await signIn(page);
  await page.getByRole("navigation", { name: "Pages" }).getByRole("link", { name: "Files" }).click();
  await expect(page.getByText("No files yet")).toBeVisible();
  await checkPage(page, "files-empty");

  await drop(page, "wrong.jsonl", wrong);
  await expect(page.getByText("2 wrong lines")).toBeVisible();
  await expect(page.getByText("2 wrong lines")).toBeFocused();
  const row = (line) => page.locator("#upload-result tbody tr").filter({ has: page.getByRole("rowheader", { name: line, exact: true }) });
  await expect(row("2")).toContainText("invalid_json_line");
  await expect(row("3")).toContainText("temperature");
  await expect(page.locator("body")).not.toContainText("a private prompt");
  await checkPage(page, "files-wrong");

  const input = lines(600, { max_tokens: 200, min_tokens: 200 }); // runs for some 30 s, so that the reload meets it
  await drop(page, "prompts.jsonl", input);
  await expect(page.getByText("prompts.jsonl stored: 600 lines, no errors.")).toBeVisible();
  await expect(page.getByText(/About 1[23]\d,\d{3} tokens at most/)).toBeVisible(); // 600 × 200 completion tokens, and the prompts
  await checkPage(page, "file");
  await page.getByLabel("Finish within").selectOption("1h");
  await page.getByRole("button", { name: "Create batch" }).click();
  await expect(page.getByText("Batch of prompts.jsonl created.")).toBeVisible();
  const batch = page.url();
  await page.reload(); // sends no form again
  expect(page.url()).toBe(batch);
  await expect(page.locator("#batch-state .tag").first()).toHaveText("completed", { timeout: 120_000 }); // by itself
  await expect(page.locator("[data-live-every]")).toContainText("Finished; live updates stopped.");
  await checkPage(page, "batch");
  const results = (await download(page, page.getByRole("link", { name: "Download results" }))).trim().split("\n").map((l) => JSON.parse(l));
  expect(results).toHaveLength(600);
  expect(new Set(results.map((r) => r.custom_id)).size).toBe(600);
  expect(results.every((r) => r.response.status_code === 200)).toBe(true);
  await expect(page.locator("body")).not.toContainText("private prompt");

  await page.getByRole("navigation", { name: "Pages" }).getByRole("link", { name: "Batches" }).click();
  await expect(page.getByRole("row", { name: /completed/ })).toContainText("600 of 600 lines");
  await expect(page.getByRole("link", { name: "prompts.jsonl" })).toBeVisible();
  await checkPage(page, "batches");
  await page.goto("/files");
  await checkPage(page, "files");
  expect(await download(page, page.getByRole("link", { name: "Download prompts.jsonl" }))).toBe(input);
  const stored = page.getByRole("row", { name: /prompts\.jsonl/ });
  await stored.getByText("Delete…").click();
  await expectNoOverflow(page, "files with a deletion");
  await stored.getByRole("button", { name: "Yes, delete prompts.jsonl" }).click();
  await expect(page.getByText("prompts.jsonl deleted.")).toBeVisible();
  await page.goto(batch);
  await expect(page.getByRole("link", { name: "prompts.jsonl" })).toHaveCount(0);
});

test("a running batch is watched and cancelled at the width of a phone", async ({ page }) => {
  await page.setViewportSize({ width: 390, height: 844 });
  await signIn(page);
  await page.goto("/files");
  const file = join(mkdtempSync(join(tmpdir(), "basegate-upload-")), "slow.jsonl");
  writeFileSync(file, lines(6000, { max_tokens: 200, min_tokens: 200 }));
  await page.locator("input[type=file]").setInputFiles(file);
  await page.getByRole("button", { name: "Upload and check" }).click();
  await page.getByRole("button", { name: "Create batch" }).click();
  await expect(page.locator("#batch-state .tag").first()).toHaveText("running");
  const done = () => page.locator("#batch-state dd").first().textContent().then((t) => Number(t.replaceAll(",", "")));
  await expect.poll(done, { timeout: 60_000 }).toBeGreaterThan(0); // by itself
  await expect(page.locator("#batch-state")).toContainText("lines/s");
  await expect(page.locator("[data-live-every]")).toContainText("while this tab is visible");
  await checkPage(page, "batch-running");
  await page.setViewportSize({ width: 390, height: 844 });

  // A hidden tab says so and asks for nothing.
  let refreshes = 0;
  page.on("request", (request) => { if (request.url() === page.url()) refreshes++; });
  const hide = (hidden) => page.evaluate((value) => {
    Object.defineProperty(document, "hidden", { configurable: true, get: () => value });
    document.dispatchEvent(new Event("visibilitychange"));
  }, hidden);
  await hide(true);
  await expect(page.locator("[data-live-every]")).toHaveText("Paused while this tab is hidden.");
  await hide(false);
  await expect.poll(() => refreshes).toBeGreaterThan(0);

  await page.goto("/dashboard");
  await page.getByRole("link", { name: "1 batch running" }).click();
  await page.getByText("Cancel batch…").click();
  await expectNoOverflow(page, "a batch that may be cancelled");
  await page.setViewportSize({ width: 390, height: 844 });
  await page.getByRole("button", { name: "Yes, cancel the batch" }).click();
  await expect(page.getByText("Batch cancelled.")).toBeVisible();
  await expect(page.locator("#batch-state .tag").first()).toHaveText("cancelled", { timeout: 60_000 });
  await expect(page.getByRole("heading", { name: /failed lines/ })).toBeVisible();
  await expect(page.locator("#batch-errors")).toContainText("batch_cancelled");
  await expect(page.locator("#batch-errors")).toContainText("The batch was cancelled, or its key revoked, before the line had ended.");
  await checkPage(page, "batch-cancelled");
  await page.setViewportSize({ width: 390, height: 844 });
  const errors = (await download(page, page.getByRole("link", { name: "Download errors" }))).trim().split("\n");
  expect(errors.length).toBeGreaterThan(100);

  await page.setViewportSize({ width: 1280, height: 800 });
  await page.goto("/admin/batches");
  await expect(page.getByRole("row", { name: /cancelled/ })).toContainText(process.env.EMAIL);
  await checkPage(page, "admin-batches");
});

test("an upload is stopped, asks for the session, and needs no script", async ({ page, browser }) => {
  await signIn(page);
  await page.goto("/files");
  const before = await page.getByRole("row").count();

  // Slow enough to be seen: the progress, and a stop that leaves nothing.
  const devtools = await page.context().newCDPSession(page);
  await devtools.send("Network.enable");
  await devtools.send("Network.emulateNetworkConditions", { offline: false, latency: 0, downloadThroughput: -1, uploadThroughput: 40_000 });
  await drop(page, "stopped.jsonl", lines(40_000));
  await expect(page.locator("#upload-text")).toContainText(/\d+ % · .* of /);
  await expectNoOverflow(page, "an upload");
  await page.getByRole("button", { name: "Stop" }).press("Enter"); // a click would wait for a page that does not move
  await expect(page.getByText("Stopped. Nothing was stored.")).toBeVisible();
  await devtools.send("Network.emulateNetworkConditions", { offline: false, latency: 0, downloadThroughput: -1, uploadThroughput: -1 });
  await page.reload();
  await expect(page.getByRole("row")).toHaveCount(before);

  // A session that has ended asks for the password, and the upload goes on.
  await page.context().clearCookies();
  await drop(page, "after-sign-in.jsonl", lines(3));
  await page.locator("#sign-in").getByLabel("Password").fill(process.env.PASSWORD);
  await page.getByRole("button", { name: "Sign in and continue" }).click();
  await expect(page.getByText("after-sign-in.jsonl stored: 3 lines, no errors.")).toBeVisible();

  const context = await browser.newContext({ javaScriptEnabled: false, storageState: await page.context().storageState() });
  const plain = await context.newPage();
  await plain.goto("/files");
  const input = plain.locator("input[type=file]");
  await input.setInputFiles({ name: "plain.jsonl", mimeType: "application/jsonl", buffer: Buffer.from(wrong) });
  await plain.getByRole("button", { name: "Upload and check" }).click();
  await expect(plain.getByText("2 wrong lines")).toBeVisible();
  await input.setInputFiles({ name: "plain.jsonl", mimeType: "application/jsonl", buffer: Buffer.from(lines(2)) });
  await plain.getByRole("button", { name: "Upload and check" }).click();
  await expect(plain.getByText("plain.jsonl stored: 2 lines, no errors.")).toBeVisible();
  await context.close();
});

test("what a batch costs is a share of the budget of the key that is chosen", async ({ page }) => {
  basegate("key", "create", "--account", process.env.EMAIL, "--name", "small", "--monthly-budget", "1000");
  await signIn(page);
  await page.goto("/files");
  await drop(page, "share.jsonl", lines(50, { max_tokens: 200 }));
  const key = page.getByLabel("Billed to key");
  await expect(page.getByText(/About 1\d,\d{3} tokens at most/)).not.toContainText("small");
  await key.selectOption({ label: "small" });
  await expect(page.getByText(/About 1\d,\d{3} tokens at most/)).toContainText("more than the 1,000 that the key small has left of the monthly budget.");
  await key.selectOption({ index: 0 });
  await expect(page.getByText(/About 1\d,\d{3} tokens at most/)).not.toContainText("small");
});
