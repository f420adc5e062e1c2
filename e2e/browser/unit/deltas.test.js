import assert from "node:assert/strict";
import { test } from "node:test";
import { addDelta } from "../../../console/static/workbench/deltas.js";
import { plainText } from "../../../console/static/workbench/tree.js";

const empty = { text: "", tokens: [], finish: null };
const entry = (id, ...others) => ({ token: `token_id:${id}`, logprob: -others.length, top_logprobs: others.map((other, i) => ({ token: `token_id:${other}`, logprob: -i })) });
const logprobs = (...content) => ({ content });

// add adds the choices of several events to an empty turn.
const add = (choices, k = 2) => choices.reduce((turn, choice) => ({ ...turn, ...addDelta(turn, choice, k) }), empty);

test("content becomes tokens with their alternatives", () => {
  const turn = add([
    { delta: { role: "assistant", content: "" }, logprobs: null },
    { delta: { content: "Hel" }, logprobs: logprobs({ token: "token_id:5", logprob: -0.5, top_logprobs: [{ token: "token_id:5", logprob: -0.5 }, { token: "token_id:6", logprob: -1 }, { token: "token_id:7", logprob: -2 }] }) },
    { delta: { content: "lo" }, logprobs: logprobs(entry(8, 8, 9)), finish_reason: "length" },
  ]);
  assert.equal(turn.text, "Hello");
  assert.equal(turn.finish, "length");
  assert.deepEqual(turn.tokens.map(({ id, text }) => [id, text]), [[5, "Hel"], [8, "lo"]]);
  assert.deepEqual(turn.tokens[0].top, [{ id: 5, logprob: -0.5 }, { id: 6, logprob: -1 }]);
});

test("a chosen token that is the least likely of those listed has no rank", () => {
  const [token] = add([{ delta: { content: "x" }, logprobs: logprobs({ token: "token_id:9", logprob: -7, top_logprobs: [{ token: "token_id:9", logprob: -7 }, { token: "token_id:1", logprob: -1 }, { token: "token_id:2", logprob: -2 }] }) }]).tokens;
  assert.deepEqual(token.top.map(({ id }) => id), [1, 2]);
});

test("the parts of a character join, and the token that ends the turn has no text", () => {
  const turn = add([
    { delta: { content: "a" }, logprobs: logprobs(entry(1)) },
    { delta: { content: "" }, logprobs: logprobs(entry(2)) },
    { delta: { content: "é" }, logprobs: logprobs(entry(3)) },
    { delta: { content: "" }, logprobs: logprobs(entry(4)), finish_reason: "stop" },
  ]);
  assert.deepEqual(turn.tokens.map(({ text, joins }) => [text, joins]), [["a", undefined], [null, undefined], ["é", 1], ["", undefined]]);
  assert.equal(plainText(turn.tokens), turn.text);
});

test("reasoning is kept apart, with its older name too, and its tokens are not those of the answer", () => {
  const turn = add([
    { delta: { reasoning: "Let me " }, logprobs: logprobs(entry(1)) },
    { delta: { reasoning_content: "think." }, logprobs: logprobs(entry(2)) },
    { delta: { content: "" }, logprobs: logprobs(entry(3)) },
    { delta: { reasoning: "End", content: "An" }, logprobs: logprobs(entry(4), entry(5)) },
    { delta: { content: "swer" }, logprobs: logprobs(entry(6)) },
  ]);
  assert.equal(turn.reasoning, "Let me think.End");
  assert.equal(turn.text, "Answer");
  assert.deepEqual(turn.tokens.map(({ id, text }) => [id, text]), [[null, "An"], [6, "swer"]]);
});

test("the parts of tool calls are put together by their index", () => {
  const turn = add([
    { delta: { tool_calls: [{ index: 0, id: "c0", type: "function", function: { name: "weather", arguments: "" } }] } },
    { delta: { tool_calls: [{ index: 0, function: { arguments: "{\"city\":" } }] }, logprobs: logprobs(entry(1)) },
    { delta: { tool_calls: [{ index: 1, id: "c1", type: "function", function: { name: "time", arguments: "{}" } }, { index: 0, function: { arguments: "\"Prague\"}" } }] } },
    { delta: { content: "" }, logprobs: logprobs(entry(2)), finish_reason: "tool_calls" },
  ]);
  assert.deepEqual(turn.calls, [{ id: "c0", name: "weather", arguments: "{\"city\":\"Prague\"}" }, { id: "c1", name: "time", arguments: "{}" }]);
  assert.deepEqual([turn.text, turn.tokens, turn.finish], ["", [], "tool_calls"]);
});

test("content without probabilities is shown as words", () => {
  const turn = add([{ delta: { content: "Hello there" }, logprobs: null }, { delta: { content: ", you" } }]);
  assert.equal(plainText(turn.tokens), "Hello there, you");
  assert.equal(turn.tokens.every(({ id, logprob }) => id === null && logprob === null), true);
});
