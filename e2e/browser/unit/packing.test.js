import assert from "node:assert/strict";
import { test } from "node:test";
import * as packing from "../../../console/static/workbench/packing.js";
import * as tree from "../../../console/static/workbench/tree.js";

const throughJSON = (tokens) => packing.unpackTokens(packing.ofJSON(JSON.parse(JSON.stringify(packing.asJSON(packing.packTokens(tokens))))));

test("packed tokens are read as they were, whatever they have", () => {
  const tokens = [
    { id: 128000, text: "<|begin_of_text|>", logprob: null, top: [] },
    { id: 7, text: " a", logprob: -0.1, top: [{ id: 7, logprob: -0.1 }, { id: 9, logprob: -2.25 }] },
    { id: 8, text: null, logprob: -1.5, rank: 40, top: [{ id: 1, logprob: -0.5, rank: 1 }, { id: 2, logprob: -0.5, rank: 1 }, { id: 8, logprob: -1.5, rank: 40 }] },
    { id: 10, text: "é", logprob: -0.25, joins: 1, top: [{ id: 4, logprob: -0.25, rank: 1 }, { id: 5, logprob: -1 }] },
    { id: null, text: "word", logprob: null, top: [] },
    { id: 2 ** 40, text: "wide", logprob: -1, top: [] },
    { id: 3, text: "of a later version", logprob: -1, top: [], later: { field: 1 } },
  ];
  assert.deepEqual(throughJSON(tokens), tokens);
  assert.deepEqual(packing.unpackTokens(packing.packTokens(tokens)), tokens);
  assert.deepEqual(throughJSON([]), []);
});

test("20,000 tokens with 20 alternatives each fit in a saved prompt, also with numbers of 64 bits, and their size is known before", () => {
  for (const [number, most] of [[Math.fround, 5], [(value) => value, 7.5]]) {
    const tokens = Array.from({ length: 20_000 }, (_, i) => ({
      id: i, text: ` word${i}`, logprob: number(-1 / (i + 1)), top: Array.from({ length: 20 }, (_, k) => ({ id: 100 * i + k, logprob: number(-k - 1 / (i + 3)) })),
    }));
    const doc = tree.change(tree.newTree("prompt"), "root", { tokens });
    const { length } = JSON.stringify(tree.pack(doc));
    assert.ok(length < most * (1 << 20), `${length} bytes`);
    assert.ok(Math.abs(length - tree.bytesOf(doc)) < 200, `${tree.bytesOf(doc)} bytes were expected, and there are ${length}`);
  }
});
