import assert from "node:assert/strict";
import { test } from "node:test";

const stub = new Proxy(function () {}, { get: (target, name) => (name === "dataset" ? {} : name === Symbol.iterator ? [][Symbol.iterator].bind([]) : stub), apply: () => stub });
globalThis.document = { getElementById: () => stub, querySelectorAll: () => [] };
const { share } = await import("../../../console/static/workbench/judged.js");
const { shuffled } = await import("../../../console/static/workbench/blind.js");
const { summaryOf } = await import("../../../console/static/workbench/summary.js");
const { shade } = await import("../../../console/static/workbench/measures.js");

test("the log-probability of another model's tokens is shared among those at the same place", () => {
  const [a, b] = [{ id: 1, text: "un", logprob: -9 }, { id: 2, text: "til", logprob: -9 }];
  const original = { id: 1, text: null, logprob: -9 };
  const found = new Map();
  share({ first: [a, b], second: [{ text: "u", logprob: -1 }, { text: "nt", logprob: -2 }, { text: "il", logprob: -3 }] }, new Map([[a, original]]), found);
  assert.equal(found.get(original).judged, -3);
  assert.equal(found.get(b).judged, -3);
  assert.equal(found.get(b).logprob, -9); // its own stays
  for (const row of [{ first: [a], second: [{ text: "un", logprob: null }] }, { first: [a], second: [] }, { first: [], second: [{ text: "x", logprob: -1 }] }]) {
    const none = new Map();
    share(row, new Map(), none);
    assert.equal(none.size, 0);
  }
});

test("a token that another model has judged is colored by its surprisal there, whatever is chosen", () => {
  for (const measure of ["surprisal", "rank", "entropy", "probability"]) {
    assert.equal(shade({ logprob: 0, judged: -20, top: [] }, measure), 8);
    assert.equal(shade({ logprob: -20, judged: 0, top: [] }, measure), 0);
  }
});

test("texts are in an order by chance, and all of them", () => {
  assert.deepEqual(shuffled(["A", "B", "C", "D"], () => 0.999), ["A", "B", "C", "D"]);
  assert.deepEqual(shuffled(["A", "B", "C", "D"], () => 0), ["B", "C", "D", "A"]);
  assert.deepEqual(shuffled(["A", "B", "C", "D"]).toSorted(), ["A", "B", "C", "D"]);
});

test("the line above Generate says what changes the text", () => {
  for (const [settings, line] of [
    [{ max_tokens: 256, temperature: 0.7, seed: 7, n: 1, logprobs: 5 }, "llama-8b · T 0.7 · 256 tokens · seed 7"],
    [{ temperature: 0, n: 4, top_p: 0.9, min_p: 0.1 }, "llama-8b · T 0 · top_p 0.9 · n 4 · min_p"],
    [{ min_p: 0, stop: ["a"], bad_words: ["b"], ignore_eos: true }, "llama-8b · 4 more"],
    [{}, "llama-8b"],
  ]) assert.equal(summaryOf("llama-8b", settings), line);
});
