import assert from "node:assert/strict";
import { test } from "node:test";
import { tokensOf } from "../../../console/static/workbench/api.js";
import { rank } from "../../../console/static/workbench/measures.js";

const choice = (tokens, top) => ({ text: "x", logprobs: { tokens, token_logprobs: tokens.map(() => -5), top_logprobs: top } });

test("a token among the top tokens has its rank", () => {
  const [token] = tokensOf(choice(["token_id:3"], [{ "token_id:3": -5, "token_id:1": -1 }]), 2);
  assert.deepEqual(token.top.map((t) => t.id), [1, 3]);
  assert.equal(rank(token), 2);
});

test("a token below the top tokens has no rank", () => {
  const [token] = tokensOf(choice(["token_id:3"], [{ "token_id:1": -1, "token_id:2": -2, "token_id:3": -5 }]), 2);
  assert.deepEqual(token.top.map((t) => t.id), [1, 2]);
  assert.equal(rank(token), null);
});

test("the tokens of an event with several tokens have no text", () => {
  const tokens = tokensOf(choice(["token_id:3", "token_id:4"], [{}, {}]), 1);
  assert.deepEqual(tokens.map((t) => [t.id, t.text]), [[3, null], [4, null]]);
  assert.deepEqual(tokensOf({ text: "x", logprobs: null }, 1), []);
});
