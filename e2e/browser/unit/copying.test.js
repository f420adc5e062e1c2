import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { test } from "node:test";
import { asBatchLine, asCurl, asNode, asPython, body } from "../../../console/static/workbench/copying.js";

const request = body("m", "it's $HOME `x` \\ \"quoted\"\nline é", { max_tokens: 5, min_p: 0.1, stop: ["'"], echo: true });

test("the shell passes the unchanged request to curl", () => {
  const line = asCurl("http://h", request).replace(/^curl/, "printf '%s\\0'");
  const args = execFileSync("bash", ["-c", line], { encoding: "utf8", env: { PATH: process.env.PATH, BASEGATE_KEY: "k" } }).split("\0");
  assert.equal(args[0], "http://h/v1/completions");
  assert.ok(args.includes("Authorization: Bearer k"));
  assert.deepEqual(JSON.parse(args[args.indexOf("-d") + 1]), request);
});

test("the Python code has the same values, with fields that the SDK does not know in extra_body", () => {
  const call = asPython("http://h", request).replace(/^[\s\S]*?create\(/, "import json\nprint(json.dumps(dict(").replace(/\)\nprint[\s\S]*$/, ")))");
  const { extra_body: extra, ...own } = JSON.parse(execFileSync("python3", ["-c", call], { encoding: "utf8" }));
  assert.deepEqual({ ...own, ...extra }, request);
});

const chat = { model: "m", messages: [{ role: "user", content: "it's" }], max_completion_tokens: 5, logprobs: true, top_logprobs: 2, tools: [{ type: "function", function: { name: "f" } }], top_k: 3, continue_final_message: true, add_generation_prompt: false };

test("a request with messages is a chat completion in every form", () => {
  assert.match(asCurl("http://h", chat), /^curl http:\/\/h\/v1\/chat\/completions /);
  assert.deepEqual(JSON.parse(asBatchLine(chat)), { custom_id: "request-1", method: "POST", url: "/v1/chat/completions", body: chat });
  assert.equal(JSON.parse(asBatchLine(request)).url, "/v1/completions");
  const call = asPython("http://h", chat).replace(/^[\s\S]*?client\.chat\.completions\.create\(/, "import json\nprint(json.dumps(dict(").replace(/\)\nprint[\s\S]*$/, ")))");
  const { extra_body: extra, ...own } = JSON.parse(execFileSync("python3", ["-c", call], { encoding: "utf8" }));
  assert.deepEqual({ ...own, ...extra }, chat);
  assert.deepEqual(Object.keys(extra), ["top_k", "continue_final_message", "add_generation_prompt"]);
});

test("the Node.js code sends the same values", async () => {
  for (const [sent, method] of [[request, "completions"], [chat, "chat.completions"]]) {
    const code = asNode("http://h", sent);
    assert.match(code, new RegExp(`await client\\.${method.replace(".", "\\.")}\\.create\\(`));
    const body_ = code.replace(/^[\s\S]*?create\(/, "").replace(/\);\nconsole[\s\S]*$/, "");
    assert.deepEqual(JSON.parse(body_), sent);
    execFileSync("node", ["--input-type=module", "--check"], { input: code });
  }
});
