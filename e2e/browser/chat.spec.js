// The workbench's chat mode: turns, versions of them, tokens, tools, and what is kept and passed on.
import { readFileSync } from "node:fs";
import { spawn } from "node:child_process";
import { addToConfig, boxOf, expect, expectAccessible, expectNoOverflow, checkPage, freePort, signIn, test } from "./console.js";
import { expectText } from "./workbench.js";

const model = "llama-8b-instruct";
const turns = (page) => page.locator("#turns > li");
const answer = (page) => turns(page).last();
const message = (page) => page.getByRole("textbox", { name: "Message", exact: true });
const send = (page) => page.getByRole("button", { name: "Send", exact: true });
const done = (page) => expect(page.locator("#progress")).toHaveText(/\d+ prompt \+ [\d,]+ completion tokens/);
const idle = (page) => expect(send(page)).toBeEnabled();
const rows = (page) => page.locator("#tree li");
const control = (turn, name) => turn.getByRole("button", { name, exact: true });
// textOf returns the text of an answer, without the tokens that have none.
const textOf = async (turn) => (await turn.getByRole("option").allTextContents()).join("").replaceAll("↵\n", "\n").replaceAll(/⟨\d+⟩/g, "");

// bodies collects the bodies of the page's requests for chat completions.
function bodies(page) {
  const all = [];
  page.on("request", (request) => { if (request.url().includes("/console/api/chat/completions")) all.push(request.postDataJSON()); });
  return all;
}

// open opens the workbench in chat mode, with parameters.
async function open(page, parameters = {}) {
  await page.goto("/workbench");
  await expect(page.locator("#bench[data-ready]")).toBeAttached();
  await page.locator("#model").selectOption(model);
  await page.getByRole("radio", { name: "Chat" }).check();
  await fill(page, { max_completion_tokens: 12, seed: 3, ...parameters });
}

async function fill(page, parameters) {
  for (const [name, value] of Object.entries(parameters)) {
    const field = page.locator(`#c-${name}`);
    await field.evaluate((el) => { const folded = el.closest("details.rare"); if (folded) folded.open = true; });
    if (await field.evaluate((el) => el.matches("select"))) await field.selectOption(value);
    else await field.fill(typeof value === "string" ? value : JSON.stringify(value));
  }
}

async function ask(page, text) {
  await message(page).fill(text);
  await send(page).click();
  await done(page);
  await idle(page);
}

// streams answers the next request with events of a stream.
const streams = (page, deltas, more = "data: [DONE]\n\n") => page.route("**/console/api/chat/completions*", (route) => route.fulfill({
  contentType: "text/event-stream",
  body: deltas.map(({ finish_reason = null, logprobs = null, ...delta }) => `data: ${JSON.stringify({ choices: [{ index: 0, delta, logprobs, finish_reason }] })}\n\n`).join("") + more,
}), { times: 1 });

const weather = [{ type: "function", function: { name: "weather", parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] } } }];

test.beforeEach(async ({ page }) => { await signIn(page); });

test("a model that chats has both modes, others have completions alone, and each mode keeps what it shows", async ({ page }) => {
  await page.goto("/workbench");
  await expect(page.locator("#bench[data-ready]")).toBeAttached();
  await page.locator("#model").selectOption("llama-8b");
  await expect(page.getByRole("group", { name: "Mode" })).toBeHidden();
  await page.getByLabel("Prompt", { exact: true }).fill("A prompt stays");
  await page.locator("#model").selectOption(model);
  await expect(page.getByRole("group", { name: "Mode" })).toBeVisible();
  await page.getByRole("radio", { name: "Chat" }).check();
  await expect(page.getByLabel("Prompt", { exact: true })).toBeHidden();
  await expect(page.getByRole("button", { name: "Score prompt" })).toBeHidden();
  await expect(page.locator("#model")).toHaveValue(model);
  await message(page).fill("A message stays");
  await page.getByRole("radio", { name: "Completion" }).check();
  await expectText(page, "A prompt stays");
  await expect(page.locator("#model")).toHaveValue(model);
  await page.getByRole("radio", { name: "Chat" }).check();
  await expect(message(page)).toHaveValue("A message stays");
  await page.locator("#model").selectOption("llama-405b");
  await expect(page.getByLabel("Prompt", { exact: true })).toBeVisible();
  await expect(page.locator("#model")).toHaveValue("llama-405b");
});

test("turns are sent with the system message and answered in a stream", async ({ page }) => {
  const sent = bodies(page);
  await open(page);
  await page.getByText("System message", { exact: true }).click();
  await page.getByRole("textbox", { name: "System message" }).fill("Answer in one sentence.");
  await message(page).fill("What is the capital of Argentina?");
  await message(page).press("Control+Enter");
  await done(page);
  await expect(turns(page)).toHaveCount(2);
  await expect(turns(page).first()).toContainText("What is the capital of Argentina?");
  await expect(answer(page)).toContainText(model);
  await expect(message(page)).toHaveValue("");
  expect(sent[0]).toMatchObject({
    model, stream: true, logprobs: true, max_completion_tokens: 12, seed: 3,
    messages: [{ role: "system", content: "Answer in one sentence." }, { role: "user", content: "What is the capital of Argentina?" }],
  });
  const first = await textOf(answer(page));
  expect(first.length).toBeGreaterThan(5);
  await expect(page.locator("#announced")).toContainText(first.trim().split(/\s+/)[0]);
  await expect(page.locator("#cost")).toHaveText("");
  await message(page).fill("And of Chile?");
  await expect(page.locator("#cost")).toHaveText(/Next run: \d+ prompt \+ up to 12 completion tokens/);
  await send(page).click();
  await expect(turns(page)).toHaveCount(4);
  await done(page);
  expect(sent[1].messages.map(({ role }) => role)).toEqual(["system", "user", "assistant", "user"]);
  expect(sent[1].messages[2].content).toBe(first);
  await checkPage(page, "workbench-chat");
});

test("regenerating makes a version, and the arrows go between versions", async ({ page }) => {
  await open(page, { seed: "" });
  await ask(page, "Tell me a story.");
  const first = await textOf(answer(page));
  await control(answer(page), "Regenerate").click();
  await expect(answer(page).getByRole("group", { name: "Versions of this turn" })).toContainText("2 of 2");
  await done(page);
  await idle(page);
  await fill(page, { n: 2 });
  await control(answer(page), "Regenerate").click();
  await expect(answer(page)).toContainText("3 of 4");
  await idle(page);
  await control(answer(page), "Next version").click();
  await expect(answer(page)).toContainText("4 of 4");
  await expect(control(answer(page), "Previous version")).toBeFocused();
  for (const place of ["3 of 4", "2 of 4", "1 of 4"]) {
    await page.keyboard.press("Enter");
    await expect(answer(page)).toContainText(place);
  }
  expect(await textOf(answer(page))).toBe(first);
  await expect(control(answer(page), "Previous version")).toBeDisabled();
  await expect(rows(page)).toHaveCount(6);
});

test("an edited turn is a version from which the conversation goes on, and the old one keeps what followed", async ({ page }) => {
  const sent = bodies(page);
  await open(page);
  await ask(page, "First question");
  const old = await textOf(answer(page));
  await ask(page, "Second question");
  await control(turns(page).first(), "Edit").click();
  await page.getByRole("textbox", { name: "Text of the turn" }).fill("Another question");
  await checkPage(page, "workbench-chat-edit");
  await page.getByRole("button", { name: "Send as a version" }).click();
  await expect(turns(page)).toHaveCount(2);
  await done(page);
  await idle(page);
  expect(sent.at(-1).messages).toEqual([{ role: "user", content: "Another question" }]);
  await expect(turns(page).first()).toContainText("2 of 2");
  await control(turns(page).first(), "Previous version").click();
  await expect(turns(page)).toHaveCount(4);
  expect(await textOf(turns(page).nth(1))).toBe(old);

  await control(turns(page).nth(1), "Edit").click();
  await page.getByRole("textbox", { name: "Text of the turn" }).fill("I never said that.");
  await page.getByRole("button", { name: "Keep as a version" }).click();
  await expect(turns(page)).toHaveCount(2);
  await ask(page, "What did you say?");
  expect(sent.at(-1).messages[1]).toEqual({ role: "assistant", content: "I never said that." });
  await control(turns(page).nth(1), "Previous version").click();
  await expect(turns(page)).toHaveCount(4);

  await page.getByText("System message", { exact: true }).click();
  await page.getByRole("textbox", { name: "System message" }).fill("Be kind.");
  await ask(page, "Third question");
  expect(sent.at(-1).messages.map(({ role }) => role)).toEqual(["system", "user", "assistant", "user", "assistant", "user"]);
});

test("the tokens of an answer show alternatives, and taking one continues a version from exactly that text", async ({ page }) => {
  const sent = bodies(page);
  await open(page, { top_logprobs: 4 });
  await ask(page, "Tell me a story.");
  expect(sent[0].top_logprobs).toBe(5); // one more, to know whether the chosen token is among the four
  const tokens = answer(page).getByRole("option");
  const before = await tokens.allTextContents();
  const popover = page.locator("#token");
  await tokens.nth(3).click();
  await expect(popover).toContainText(/probability .* bits · rank/);
  await expect(popover.locator(".alternatives li:not(.head)")).not.toHaveCount(0);
  expect(await popover.locator(".alternatives li:not(.head)").count()).toBeLessThanOrEqual(4);
  await popover.getByRole("button", { name: /^Continue with/ }).first().click();
  await expect.poll(() => sent.length).toBe(2);
  await done(page);
  await idle(page);
  expect(sent[1]).toMatchObject({ continue_final_message: true, add_generation_prompt: false });
  const { role, content } = sent[1].messages[1];
  const kept = before.slice(0, 3).join("");
  expect([role, content.slice(0, kept.length)]).toEqual(["assistant", kept]);
  const taken = content.slice(kept.length);
  expect(taken).not.toBe(before[3]);
  await expect(answer(page)).toContainText("2 of 2");
  const after = await tokens.allTextContents();
  expect(after.slice(0, 4)).toEqual([...before.slice(0, 3), taken]);
  expect(after.length).toBeGreaterThan(4);

  await answer(page).getByRole("listbox").focus();
  await page.keyboard.press("Home");
  await page.keyboard.press("ArrowRight");
  await page.keyboard.press("Enter");
  await page.getByLabel("Your own text").fill(" purple elephants");
  await page.getByRole("button", { name: "Branch here" }).click();
  await expect.poll(() => sent.length).toBe(3);
  await idle(page);
  expect(sent[2].messages[1].content).toBe(`${before[0]} purple elephants`);
  await expect(answer(page)).toContainText("3 of 3");
});

test("an answer is continued at its end, and one that the user has begun is continued too", async ({ page }) => {
  const sent = bodies(page);
  await open(page);
  await ask(page, "Tell me a story.");
  const first = await textOf(answer(page));
  await control(answer(page), "Continue").click();
  await expect.poll(() => sent.length).toBe(2);
  await done(page);
  await idle(page);
  expect(sent[1].messages[1]).toEqual({ role: "assistant", content: first });
  const longer = await textOf(answer(page));
  expect(longer.startsWith(first)).toBe(true);
  expect(longer.length).toBeGreaterThan(first.length);
  await expect(turns(page)).toHaveCount(2);
  await ask(page, "And then?");
  await control(turns(page).nth(1), "Continue").click();
  await expect(turns(page)).toHaveCount(2);
  await expect(answer(page)).toContainText("2 of 2");
  await idle(page);

  page.once("dialog", (dialog) => dialog.accept());
  await page.getByRole("button", { name: "New" }).click();
  await expect(turns(page)).toHaveCount(0);
  await message(page).fill("Write a poem.");
  await page.getByRole("button", { name: "Add", exact: true }).click();
  await expect(turns(page)).toHaveCount(1);
  await page.getByRole("combobox", { name: "Role of the message" }).selectOption("assistant");
  await ask(page, "Roses are");
  expect(sent.at(-1)).toMatchObject({
    continue_final_message: true, messages: [{ role: "user", content: "Write a poem." }, { role: "assistant", content: "Roses are" }],
  });
  expect(await textOf(answer(page))).toMatch(/^Roses are[\s\S]/);
});

test("a tool call is shown, and its result goes back as a turn", async ({ page }) => {
  const sent = bodies(page);
  await open(page, { max_completion_tokens: 60, tools: weather });
  await ask(page, "How is the weather in Prague?");
  const call = answer(page).getByRole("region", { name: "Call of weather" });
  await expect(call.getByLabel("Arguments")).toContainText("city");
  const result = page.getByRole("textbox", { name: "Result of weather" });
  await result.fill("{\"sky\": \"sunny\"}");
  await checkPage(page, "workbench-chat-tools");
  await page.getByRole("button", { name: "Send result" }).click();
  await expect(turns(page)).toHaveCount(4);
  await done(page);
  await idle(page);
  await expect(turns(page).nth(2)).toContainText("weather");
  const [, asked, returned] = sent[1].messages;
  expect(asked.tool_calls[0].function.name).toBe("weather");
  expect(returned).toEqual({ role: "tool", tool_call_id: asked.tool_calls[0].id, content: "{\"sky\": \"sunny\"}" });
  await expect(result).toBeHidden();
  await expect(answer(page).getByRole("option").first()).toBeVisible();
});

test("JSON that is not valid is named at its field and not sent, and a schema forms the answer", async ({ page }) => {
  const sent = bodies(page);
  await open(page, { max_completion_tokens: 200, response_format: "{" });
  await message(page).fill("Invent a city.");
  await send(page).click();
  await expect(page.locator("#error")).toContainText("response_format: This is not JSON");
  await expect(page.locator("#c-response_format")).toBeFocused();
  await expect(page.locator("#c-response_format-problem")).toContainText("This is not JSON");
  await expectAccessible(page);
  expect(sent).toHaveLength(0);
  await fill(page, { response_format: { type: "object", properties: { name: { type: "string" } }, required: ["name"] } });
  await expect(page.locator("#c-response_format-problem")).toHaveText("");
  await send(page).click();
  await done(page);
  expect(sent[0].response_format).toMatchObject({ type: "json_schema", json_schema: { name: "answer" } });
  expect(Object.keys(JSON.parse(await textOf(answer(page))))).toEqual(["name"]);
});

test("an error is shown in its place with its field, and what was typed stays a turn", async ({ page }) => {
  await open(page, { temperature: 9 });
  await message(page).fill("Hello");
  await send(page).click();
  await expect(page.locator("#error")).toContainText("temperature");
  await expect(page.locator("#c-temperature")).toHaveAttribute("aria-invalid", "true");
  await expect(turns(page)).toHaveCount(1);
  await fill(page, { temperature: 1 });
  await control(turns(page).first(), "Answer").click();
  await done(page);
  await expect(turns(page)).toHaveCount(2);
  await idle(page);

  await page.route("**/console/api/chat/completions*", (route) => route.fulfill({
    status: 429, headers: { "Retry-After": "7" }, contentType: "application/json",
    body: JSON.stringify({ error: { message: "The queue is full.", code: "overloaded", type: "overloaded", param: null } }),
  }), { times: 1 });
  await message(page).fill("Again");
  await send(page).click();
  await expect(page.locator("#error")).toContainText("Try again in 7 seconds");
  await expect(turns(page)).toHaveCount(3);
  await fill(page, { temperature: 9 });
  await control(turns(page).nth(1), "Regenerate").click();
  await expect(page.locator("#error")).toContainText("temperature");
  await expect(turns(page)).toHaveCount(3); // what was shown is shown again
  await fill(page, { temperature: 1 });
  await streams(page, [{ role: "assistant", content: "" }, { content: "Half an ans" }], "");
  await send(page).click();
  await expect(page.locator("#error")).toContainText("The text generated so far is kept");
  await expect(answer(page)).toContainText("Half an ans");
});

test("a token that scrolls under the pointer, as while an answer grows, shows no alternatives until the pointer moves", async ({ page }) => {
  await open(page);
  await page.setViewportSize({ width: 1280, height: 450 });
  await ask(page, "A story");
  await page.evaluate(() => {
    scrollTo(0, 0);
    document.addEventListener("pointerover", ({ target }) => { if (target.matches(".token")) document.body.dataset.reached = ""; });
  });
  const { x, y, width, height } = await boxOf(answer(page).getByRole("option").nth(1));
  const above = await boxOf(turns(page).first());
  await page.mouse.move(x + width / 2, above.y + 5);
  await page.evaluate((by) => scrollBy(0, by), y + height / 2 - above.y - 5);
  await expect(page.locator("body[data-reached]")).toBeAttached();
  await expect(page.locator("#token")).toBeHidden();
  await answer(page).getByRole("option").nth(2).hover();
  await expect(page.locator("#token")).toBeVisible();
});

test("Stop keeps the answer so far, which can be continued", async ({ page }) => {
  await open(page, { max_completion_tokens: 2000 });
  await message(page).fill("A long story");
  await send(page).click();
  await expect(answer(page).getByRole("option").nth(5)).toBeVisible();
  await page.getByRole("button", { name: "Stop" }).press("Enter"); // a click would wait for a page that does not move
  await expect(page.locator("#progress")).toContainText("Stopped");
  await idle(page);
  const kept = await textOf(answer(page));
  expect(kept.length).toBeGreaterThan(5);
  await fill(page, { max_completion_tokens: 5 });
  await control(answer(page), "Continue").click();
  await done(page);
  expect((await textOf(answer(page))).startsWith(kept.slice(0, 10))).toBe(true);
});

test("reasoning is folded and no part of the answer that is sent back", async ({ page }) => {
  const sent = bodies(page);
  await open(page);
  await streams(page, [{ role: "assistant", content: "" }, { reasoning: "First I think" }, { reasoning_content: " and think." }, { content: "The answer." }, { content: "", finish_reason: "stop" }]);
  await message(page).fill("Think");
  await send(page).click();
  await expect(answer(page)).toContainText("The answer.");
  const reasoning = answer(page).getByText("First I think and think.");
  await expect(reasoning).toBeHidden();
  await answer(page).getByText(/^Reasoning/).click();
  await expect(reasoning).toBeVisible();
  await checkPage(page, "workbench-chat-reasoning");
  await idle(page);
  await ask(page, "More");
  expect(sent.at(-1).messages[1]).toEqual({ role: "assistant", content: "The answer." });
});

test("a reload keeps the conversation, its versions, the message and the parameters", async ({ page }) => {
  await open(page, { tools: weather, tool_choice: "none" });
  await ask(page, "A draft");
  await control(answer(page), "Regenerate").click();
  await expect(answer(page)).toContainText("2 of 2");
  await idle(page);
  const text = await textOf(answer(page));
  await page.getByRole("button", { name: "Name", exact: true }).click();
  await page.getByRole("textbox", { name: "Name of the branch" }).fill("the good one");
  await page.keyboard.press("Enter");
  await message(page).fill("Not sent yet");
  await fill(page, { seed: 77 });
  await page.reload();
  await expect(page.locator("#progress")).toContainText("restored");
  await expect(page.getByRole("radio", { name: "Chat" })).toBeChecked();
  await expect(page.locator("#model")).toHaveValue(model);
  await expect(message(page)).toHaveValue("Not sent yet");
  await expect(answer(page)).toContainText("2 of 2");
  await expect(answer(page)).toContainText("the good one");
  expect(await textOf(answer(page))).toBe(text);
  await expect(page.locator("#c-seed")).toHaveValue("77");
  expect(JSON.parse(await page.locator("#c-tools").inputValue())).toEqual(weather);
  await rows(page).first().locator(".label").click();
  await expect(turns(page)).toHaveCount(0);
  await expect(page.getByRole("button", { name: "Delete branch" })).toBeDisabled();
  await rows(page).nth(1).locator(".label").click();
  await page.getByRole("button", { name: "Show the turns that follow" }).click();
  await expect(turns(page)).toHaveCount(2);
});

test("a saved conversation is opened with its turns, also by a link", async ({ page }) => {
  await open(page);
  await ask(page, "Keep this");
  const text = await textOf(answer(page));
  const name = `A conversation ${Date.now()}`;
  await page.getByRole("textbox", { name: "Name", exact: true }).fill(name);
  await page.getByRole("button", { name: "Save", exact: true }).click();
  await expect(page.locator("#saved-status")).toHaveText(/^Saved \d\d:\d\d$/);
  await page.getByText("Share", { exact: true }).click();
  await page.getByRole("button", { name: "Create link" }).click();
  const link = await page.getByRole("textbox", { name: "Link" }).inputValue();
  await page.goto("/workbench");
  await expect(page.locator("#bench[data-ready]")).toBeAttached();
  await expect(page.getByLabel("Prompt", { exact: true })).toBeVisible();
  await page.getByText("Open", { exact: true }).click();
  await page.getByRole("searchbox", { name: "Search" }).fill("Keep this");
  await page.getByRole("button", { name, exact: true }).click();
  await expect(turns(page)).toHaveCount(2);
  expect(await textOf(answer(page))).toBe(text);
  await expect(page.locator("#model")).toHaveValue(model);
  await page.goto(link);
  await expect(page.locator("#shared-notice")).toContainText(name);
  await expect(turns(page)).toHaveCount(2);
  await expect(message(page)).toBeVisible();
});

test("the conversation is copied as requests and saved as files", async ({ page }) => {
  await open(page);
  await ask(page, "Copy this");
  await message(page).fill("And this");
  await page.getByText("Copy and export").click();
  const copied = page.locator("#copied");
  const copy = (name) => page.getByRole("button", { name, exact: true }).click();
  await copy("JSON");
  const request = JSON.parse(await copied.textContent());
  expect(request.messages.map(({ content }) => content)).toEqual(["Copy this", await textOf(answer(page)), "And this"]);
  expect(request).toMatchObject({ model, logprobs: true, top_logprobs: 5, max_completion_tokens: 12 });
  await copy("curl");
  await expect(copied).toContainText("/v1/chat/completions");
  await copy("Python");
  await expect(copied).toContainText("client.chat.completions.create(");
  await copy("Node.js");
  await expect(copied).toContainText("await client.chat.completions.create({");
  await copy("Batch line");
  expect(JSON.parse(await copied.textContent())).toEqual({ custom_id: "request-1", method: "POST", url: "/v1/chat/completions", body: request });
  await copy("Plain text");
  await expect(copied).toContainText("User: Copy this");
  await expect(page.getByRole("button", { name: "lm-eval" })).toBeHidden();
  const download = async (name) => {
    const started = page.waitForEvent("download");
    await copy(name);
    return readFileSync(await (await started).path(), "utf8");
  };
  expect(await download("Markdown file")).toMatch(/## User\n\nCopy this\n\n## Assistant \(llama-8b-instruct\)\n/);
  const { branches } = JSON.parse(await download("JSON file"));
  expect(branches.map(({ role }) => role)).toEqual(["system", "user", "assistant"]);
  expect(branches[2].tokens[0].logprob).toBeLessThanOrEqual(0);
  await expectNoOverflow(page, "workbench-chat-copied");
});

test("a preset of chat sets its parameters", async ({ page }) => {
  await open(page);
  await page.locator("#preset").selectOption("Four samples");
  await expect(page.locator("#c-n")).toHaveValue("4");
  await expect(page.locator("#c-max_completion_tokens")).toHaveValue("256");
  await page.getByRole("textbox", { name: "New preset" }).fill("mine");
  await page.getByRole("button", { name: "Save preset" }).click();
  await expect(page.locator("#preset")).toHaveValue("mine");
  await page.getByRole("radio", { name: "Completion" }).check();
  await expect(page.locator("#preset").locator("option", { hasText: "mine" })).toHaveCount(0);
});

// addChatOnlyModel adds the model talk, which serves chat completions alone and reasons. It returns a function that removes it.
async function addChatOnlyModel() {
  const port = await freePort();
  const mock = spawn(process.env.BASEGATE, ["mockvllm", "--listen", `127.0.0.1:${port}`, "--model", "org/talk", "--chat-template", "chatml", "--reasoning"]);
  const removeModel = addToConfig(`  - {id: talk, checkpoint: org/talk, chat: true, completions: false, backends: [{name: talk, url: "http://127.0.0.1:${port}"}]}\n`);
  return () => { removeModel(); mock.kill(); };
}

test("a model that only chats has chat alone, and is not offered where completions are needed", async ({ page }) => {
  const remove = await addChatOnlyModel();
  try {
    await expect.poll(async () => (await (await page.request.get("/console/api/workbench")).json()).models.find(({ id }) => id === "talk")?.status, { timeout: 30_000 }).toBe("warm");
    await page.goto("/workbench");
    await expect(page.locator("#bench[data-ready]")).toBeAttached();
    await page.locator("#model").selectOption("talk");
    await expect(page.getByRole("radio", { name: "Chat" })).toBeChecked();
    await expect(page.getByRole("radio", { name: "Completion" })).toBeHidden();
    await expect(page.locator("#second-model option[value=talk]")).toHaveCount(0);
    await fill(page, { max_completion_tokens: 20, seed: 1 });
    await ask(page, "Hello");
    await expect(answer(page).getByText(/^Reasoning/)).toBeVisible();
    expect((await textOf(answer(page))).length).toBeGreaterThan(3);
    await page.locator("#model").selectOption("llama-8b");
    await expect(page.getByLabel("Prompt", { exact: true })).toBeVisible();
  } finally {
    remove();
  }
});
