import assert from "node:assert/strict";
import { test } from "node:test";
import * as prose from "../../../console/static/workbench/prose.js";
import * as tree from "../../../console/static/workbench/tree.js";

const tokens = (...texts) => texts.map((text, i) => ({ id: 10 + i, text, logprob: -1, top: [] }));
const unscored = (...texts) => tokens(...texts).map((token) => ({ ...token, logprob: null }));

// sample returns a prompt with a continuation, which is selected, and the id of that.
function sample() {
  let doc = tree.change(tree.newTree("The capital"), "root", { model: "m", tokens: unscored("<|begin|>", "The", " capital") });
  let id;
  [doc, id] = tree.add(doc, "root", { tokens: tokens(" of", " France", " is", " Paris", "<|end|>"), made: { model: "m" } });
  return { doc: tree.select(doc, id), id };
}

const textOf = (doc) => prose.textOf(doc, doc.selected);

test("prompt and continuation are one text, the prompt as lines until it is scored", () => {
  const { doc, id } = sample();
  assert.equal(prose.textOf(doc, id), "The capital of France is Paris");
  assert.deepEqual(prose.placesOf(doc, id).map(({ token }) => token.text), ["The capital", " of", " France", " is", " Paris", "<|end|>"]);
  const scored = tree.change(doc, "root", { tokens: tokens("<|begin|>", "The", " capital") });
  assert.deepEqual(prose.placesOf(scored, id).slice(0, 3).map(({ token }) => token.text), ["<|begin|>", "The", " capital"]);
  assert.equal(prose.own("a\n\nb").length, 3);
});

test("a prompt that nothing follows changes in its place", () => {
  const doc = prose.write(tree.change(tree.newTree("One"), "root", { model: "m", tokens: tokens("One") }), "root", "One two");
  assert.deepEqual(doc.order, ["root"]);
  assert.deepEqual([doc.nodes.root.text, doc.nodes.root.tokens, doc.nodes.root.model], ["One two", [], null]);
});

test("a change within generated text makes a branch, which grows while the person writes", () => {
  const { doc, id } = sample();
  let next = prose.write(doc, id, "The capital of Spain is Paris");
  assert.equal(textOf(next), "The capital of Spain is Paris");
  assert.equal(prose.textOf(next, id), "The capital of France is Paris");
  const branch = next.nodes[next.selected];
  assert.deepEqual([branch.parent, branch.at, branch.edited], [id, 1, true]);
  assert.ok(branch.tokens.every((token) => token.id === null && token.logprob === null));
  next = prose.write(next, next.selected, "The capital of Spain is Madrid");
  assert.equal(next.selected, branch.id);
  assert.equal(textOf(next), "The capital of Spain is Madrid");
  next = prose.write(next, next.selected, "The capital of"); // deletes what was written
  assert.equal(textOf(next), "The capital of");
  next = prose.write(next, next.selected, "The capital"); // and more: the branch that it replaces goes
  assert.equal(textOf(next), "The capital");
  assert.deepEqual(next.order, ["root", id]);
});

test("text after the end follows the last token that is none of the end's", () => {
  const { doc, id } = sample();
  const next = prose.write(doc, id, "The capital of France is Paris, of");
  const written = next.nodes[next.selected];
  assert.deepEqual([written.parent, written.at], [id, 4]);
  assert.equal(textOf(next), "The capital of France is Paris, of");
});

test("a change within a prompt that others follow makes another prompt, and a text without what follows selects what precedes", () => {
  const { doc, id } = sample();
  const other = prose.write(doc, id, "A capital of France is Paris");
  assert.equal(other.nodes[other.selected].parent, null);
  assert.equal(textOf(other), "A capital of France is Paris");
  assert.equal(prose.textOf(other, id), "The capital of France is Paris");
  const before = prose.write(doc, id, "The capital");
  assert.equal(before.selected, "root");
  assert.equal(before.order.length, 2);
});

test("a branch within a scored prompt has the text before it", () => {
  let { doc } = sample();
  doc = tree.change(doc, "root", { tokens: tokens("<|begin|>", "The", " capital") });
  let id;
  [doc, id] = tree.branch(doc, "root", 2, tokens(" city"));
  assert.equal(prose.textOf(doc, id), "The city");
  assert.equal(textOf(prose.write(doc, id, "The city of")), "The city of");
});

test("a branch is split between tokens without a node, and within one with its last word", () => {
  const { doc, id } = sample();
  assert.deepEqual(prose.split(doc, id, "The capital of France").slice(1), [id, 2]);
  assert.deepEqual(prose.split(doc, id, "The capital").slice(1), ["root", 3]);
  const [next, written, at] = prose.split(doc, id, "The capital of Fra");
  assert.equal(at, null);
  assert.deepEqual([next.nodes[written].parent, next.nodes[written].at], [id, 1]);
  assert.equal(prose.textOf(next, written), "The capital of Fra");
  const [within, root] = prose.split(doc, id, "The cap");
  assert.equal(within.nodes[root].text, "The cap");
});

test("branches part where others follow the same place, and where a branch that goes on has others", () => {
  let { doc, id } = sample();
  assert.deepEqual(prose.partings(doc, id), []);
  assert.deepEqual(prose.partings(doc, "root"), [{ node: "root", at: 3, ids: [id], current: null }]);
  let second, inner;
  [doc, second] = tree.add(doc, "root", { tokens: tokens(" city") });
  [doc, inner] = tree.branch(doc, id, 2, tokens(" was"));
  assert.deepEqual(prose.partings(doc, inner), [{ node: "root", at: 3, ids: [id, second], current: id }, { node: id, at: 2, ids: [id, inner], current: inner }]);
  assert.deepEqual(prose.partings(doc, id).at(-1), { node: id, at: 2, ids: [id, inner], current: id });
  assert.deepEqual(prose.partings(doc, second).map(({ at }) => at), [3]);
});

test("deletions reach as far as in any field", () => {
  const text = "One two,\nthree 👩‍👩‍👧";
  assert.deepEqual(prose.reach(text, text.length, "deleteContentBackward"), [15, text.length]);
  assert.deepEqual(prose.reach(text, 7, "deleteWordBackward"), [4, 7]);
  assert.deepEqual(prose.reach(text, 4, "deleteWordBackward"), [0, 4]);
  assert.deepEqual(prose.reach(text, 3, "deleteWordForward"), [3, 7]);
  assert.deepEqual(prose.reach(text, 12, "deleteSoftLineBackward"), [9, 12]);
  assert.deepEqual(prose.reach(text, 4, "deleteHardLineForward"), [4, 8]);
  assert.deepEqual(prose.reach(text, 0, "deleteContentBackward"), [0, 0]);
});

test("a branch and the one whose end it follows become one, with what follows both", () => {
  let { doc, id } = sample();
  let inner, last, sibling;
  [doc, sibling] = tree.add(doc, "root", { tokens: tokens(" city") });
  [doc, inner] = tree.branch(doc, id, 2, tokens(" was"));
  [doc, last] = tree.add(doc, inner, { tokens: tokens(" Rome", "."), finish: "stop" });
  assert.equal(prose.merge(doc, inner), doc); // it follows a part of its parent
  const texts = (merged) => [id, inner, last, sibling].filter((node) => merged.nodes[node]).map((node) => prose.textOf(merged, node));
  const merged = prose.merge(doc, last);
  assert.deepEqual(texts(merged), ["The capital of France is Paris", "The capital of France was Rome.", "The capital city"]);
  assert.deepEqual([merged.selected, merged.nodes[inner].finish], [inner, "stop"]);
  const prompt = prose.merge(doc, id);
  assert.deepEqual(texts(prompt), ["The capital of France was", "The capital of France was Rome.", "The capital city"]);
  assert.equal(prose.textOf(prompt, "root"), "The capital of France is Paris");
  const written = prose.write(doc, last, "The capital of France was Rome. Yes");
  assert.equal(prose.merge(written, written.selected), written); // it has no token ids yet
});

test("lists have in common what is the same in all, and each has a rest", () => {
  const [a, b, c] = [tokens(" a", " b"), tokens(" a", " c"), tokens(" a")];
  assert.equal(prose.common([a, b]), 1);
  assert.equal(prose.common([a, b, c]), 0);
  assert.equal(prose.common([a]), 0);
  assert.equal(prose.common([a, a]), 1);
});
