import assert from "node:assert/strict";
import { test } from "node:test";
import { Pace } from "../../../console/static/workbench/pace.js";

test("the pace of a stream is the time to its first token and the tokens a second after it", () => {
  const shown = [];
  let time = 0;
  const pace = new Pace((text) => shown.push(text), () => time);
  time = 1000;
  pace.start();
  time = 1250;
  pace.count(1);
  time = 2250;
  pace.count(100);
  pace.usage = { prompt_tokens: 3, completion_tokens: 101 };
  pace.end();
  assert.equal(shown.at(-2), "Generating… 101 tokens · first token after 0.25 s · 100 tokens/s");
  assert.equal(shown.at(-1), "3 prompt + 101 completion tokens · first token after 0.25 s · 100 tokens/s");
});
