import assert from "node:assert/strict";
import { test } from "node:test";
import { tokensOf, withLogprobs } from "../../../console/static/workbench/api.js";
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

test("a scored token has its rank and the likeliest ones, and the first has none", () => {
  const tokens = [{ id: 1, text: "a" }, { id: 2, text: "b" }];
  const logprobs = [{ token_id: 2, token: "b", logprob: -3, rank: 4, top: [{ token_id: 7, token: "c", logprob: -1, rank: 1 }] }];
  assert.deepEqual(withLogprobs(tokens, logprobs), [tokens[0], { id: 2, text: "b", logprob: -3, rank: 4, top: [{ id: 7, logprob: -1, rank: 1 }] }]);
  assert.deepEqual(withLogprobs(tokens, [{ token_id: 2, logprob: -3, rank: 4 }])[1].top, []);
});

test("the tokens of an event with several tokens have no text", () => {
  const tokens = tokensOf(choice(["token_id:3", "token_id:4"], [{}, {}]), 1);
  assert.deepEqual(tokens.map((t) => [t.id, t.text]), [[3, null], [4, null]]);
  assert.deepEqual(tokensOf({ text: "x", logprobs: null }, 1), []);
});
