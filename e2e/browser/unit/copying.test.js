import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { test } from "node:test";
import { asCurl, asPython, body } from "../../../console/static/workbench/copying.js";

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
