import assert from "node:assert/strict";
import { test } from "node:test";
import { align, difference } from "../../../console/static/workbench/align.js";

let id = 0;
const tokens = (...texts) => texts.map((text) => ({ id: id++, text, logprob: -1, top: [] }));
const textsOf = (rows) => rows.map(({ first, second }) => [first.map((t) => t.text).join("|"), second.map((t) => t.text).join("|")]);

test("differences are the tokens that only one list has", () => {
  const parts = difference(tokens("The", " cat", " sat"), tokens("The", " dog", " sat", "."));
  assert.deepEqual(parts.map((p) => [p.kind, p.tokens.map((t) => t.text).join("")]), [["same", "The"], ["first", " cat"], ["second", " dog"], ["same", " sat"], ["second", "."]]);
});

test("the same text in other tokens is aligned where tokens of both end", () => {
  assert.deepEqual(textsOf(align(tokens("un", "happy", " man"), tokens("unhap", "py", " man"))), [["un|happy", "unhap|py"], [" man", " man"]]);
  assert.deepEqual(textsOf(align(tokens("a", "b"), tokens("ab"))), [["a|b", "ab"]]);
});

test("a character of several tokens is one row with the token of another model", () => {
  const parts = [{ id: 1, text: null, logprob: -1 }, { id: 2, text: "ř", joins: 1, logprob: -1 }, ...tokens("eka")];
  const rows = align(parts, tokens("ř", "eka"));
  assert.deepEqual(rows.map((row) => [row.first.length, row.second.length]), [[2, 1], [1, 1]]);
});

test("in other texts, tokens in the place of others are one row, and the same ones keep the probabilities of their text", () => {
  const [first, second] = [tokens("The", " cat", " sat"), tokens("The", " dog", " sat")];
  const rows = align(first, second);
  assert.deepEqual(textsOf(rows), [["The", "The"], [" cat", " dog"], [" sat", " sat"]]);
  for (const i of [0, 1, 2]) assert.deepEqual([rows[i].first[0], rows[i].second[0]], [first[i], second[i]]);
});
