import assert from "node:assert/strict";
import { test } from "node:test";
import { entropy, percent, rank, score, shade, surprisal } from "../../../console/static/workbench/measures.js";

const half = Math.log(0.5);
const near = (got, want) => assert.ok(Math.abs(got - want) < 1e-9, `${got}, want ${want}`);

test("surprisal is in bits", () => near(surprisal(half), 1));

test("entropy counts the unlisted probability mass as one alternative", () => {
  near(entropy({ top: [{ id: 1, logprob: half }, { id: 2, logprob: half }] }), 1);
  near(entropy({ top: [{ id: 1, logprob: half }] }), 1);
  assert.equal(entropy({ top: [] }), null);
});

test("a rank is the position among the alternatives, and null below the last one", () => {
  const top = [{ id: 1, logprob: -0.1 }, { id: 2, logprob: -2 }, { id: 3, logprob: -2 }];
  assert.equal(rank({ id: 3, logprob: -2, top }), 2);
  assert.equal(rank({ id: 9, logprob: -7, top }), null);
  assert.equal(rank({ id: 9, logprob: -7, top, rank: 812 }), 812);
});

test("a score sums the known log probabilities, per token and per byte", () => {
  const s = score([{ logprob: null }, { logprob: half }, { logprob: 3 * half }], 8);
  assert.equal(s.tokens, 2);
  near(s.bits, 4);
  near(s.perToken, 2 * half);
  near(s.bitsPerByte, 0.5);
  near(s.perplexity, 4);
  assert.equal(score([], 0).perToken, null);
});

test("shades grow with surprisal and are null if the value is unknown", () => {
  assert.equal(shade({ logprob: null }, "surprisal"), null);
  assert.equal(shade({ logprob: 0 }, "surprisal"), 0);
  assert.equal(shade({ logprob: -100 }, "surprisal"), 8);
  assert.equal(shade({ id: 9, logprob: -9, top: [{ id: 1, logprob: -1 }] }, "rank"), 8);
});

test("small probabilities keep their digits", () => {
  assert.equal(percent(0), "100 %");
  assert.equal(percent(half), "50.0 %");
  assert.equal(percent(Math.log(1e-6)), "0.00010 %");
});
