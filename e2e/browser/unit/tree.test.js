import assert from "node:assert/strict";
import { test } from "node:test";
import * as tree from "../../../console/static/workbench/tree.js";

const token = (id, text = `t${id}`) => ({ id, text, logprob: -1, top: [] });
const tokens = (...ids) => ids.map((id) => token(id));

// sampleTree returns a tree whose root has a continuation (first) and a branch of that (second).
function sampleTree() {
  let doc = tree.change(tree.newTree("prompt"), "root", { tokens: tokens(1, 2, 3) });
  let first, second;
  [doc, first] = tree.add(doc, "root", { tokens: tokens(4, 5, 6) });
  [doc, second] = tree.branch(doc, first, 1, [token(50)]);
  return { doc, first, second };
}

test("a prefix is exactly the token IDs before a position, across nodes", () => {
  const { doc, first, second } = sampleTree();
  assert.deepEqual(tree.prefix(doc, "root"), [1, 2, 3]);
  assert.deepEqual(tree.prefix(doc, first), [1, 2, 3, 4, 5, 6]);
  assert.deepEqual(tree.prefix(doc, first, 2), [1, 2, 3, 4, 5]);
  assert.deepEqual(tree.prefix(doc, second), [1, 2, 3, 4, 50]);
  assert.deepEqual(tree.prefix(doc, second, 0), [1, 2, 3, 4]);
});

test("a branch within the prompt excludes the rest of the prompt", () => {
  const [doc, id] = tree.branch(sampleTree().doc, "root", 1, [token(20)]);
  assert.deepEqual(tree.prefix(doc, id), [1, 20]);
  assert.deepEqual(tree.path(doc, id).map((p) => [p.node, p.index]), [["root", 0], [id, 0]]);
});

test("the prefix of a branch of a branch has the tokens of both", () => {
  const { doc, second } = sampleTree();
  const longer = tree.change(doc, second, { tokens: tokens(50, 51, 52) });
  const [last, id] = tree.branch(longer, second, 2, [token(99)]);
  assert.deepEqual(tree.prefix(last, id), [1, 2, 3, 4, 50, 51, 99]);
});

test("changes return a new tree and leave the old one as it was", () => {
  const { doc, first } = sampleTree();
  const before = JSON.stringify(doc);
  tree.remove(tree.change(doc, first, { tokens: [] }), first);
  tree.branch(doc, first, 0, [token(7)]);
  assert.equal(JSON.stringify(doc), before);
});

test("removing a node removes its descendants, and the root cannot be removed", () => {
  const { doc, first, second } = sampleTree();
  const remaining = tree.remove(tree.select(doc, second), first);
  assert.deepEqual(remaining.order, ["root"]);
  assert.equal(remaining.selected, "root");
  assert.equal(tree.remove(doc, "root"), doc);
});

test("unpack reverses pack", () => {
  const { doc } = sampleTree();
  assert.deepEqual(tree.unpack(JSON.parse(JSON.stringify(tree.pack(doc)))), doc);
  assert.deepEqual(tree.unpack({ format: 1, nodes: doc.order.map((id) => doc.nodes[id]), selected: doc.selected, next: doc.next }), doc);
  assert.throws(() => tree.unpack({ format: 3, nodes: [] }), /another version/);
  assert.throws(() => tree.unpack(null), /another version/);
});

test("walk lists parents before their children", () => {
  const { doc, first, second } = sampleTree();
  assert.deepEqual(tree.walk(doc).map(([n, depth]) => [n.id, depth]), [["root", 0], [first, 1], [second, 2]]);
});

test("each pair of prompt and model has exactly one root", () => {
  const text = "prompt";
  let doc = tree.newTree();
  let a, b, c, again;
  [doc, a] = tree.ensureRoot(doc, text, "m");
  assert.equal(a, "root"); // the empty root is reused
  [doc, b] = tree.ensureRoot(doc, text, "other");
  [doc, c] = tree.ensureRoot(doc, "another prompt", "m");
  assert.equal(new Set([a, b, c]).size, 3);
  [doc, again] = tree.ensureRoot(doc, text, "other");
  assert.equal(again, b);
  assert.deepEqual(tree.roots(doc), [a, b, c]);

  let leaf;
  [doc, leaf] = tree.add(tree.change(doc, b, { tokens: tokens(7) }), b, { tokens: tokens(8) });
  assert.equal(tree.rootOf(doc, leaf).model, "other");
  assert.deepEqual(tree.prefix(doc, leaf), [7, 8]);
  const remaining = tree.remove(tree.select(doc, leaf), b);
  assert.deepEqual(remaining.order, [a, c]);
  assert.equal(remaining.selected, a);
});

test("a draft without a model gets the model of its first request", () => {
  let doc, draft, sent;
  [doc, draft] = tree.ensureRoot(tree.newTree(), "draft", null);
  [doc, sent] = tree.ensureRoot(doc, "draft", "m");
  assert.equal(sent, draft);
  assert.equal(doc.nodes[sent].model, "m");
});

test("an edit keeps the tokens before the changed word", () => {
  const words = (...texts) => texts.map((text, i) => ({ id: i, text, logprob: -1, top: [] }));
  const before = words(" The", " cap", "ital", " of", " France");
  assert.equal(tree.unchangedBy(before, " The capitol of France"), 1);
  assert.equal(tree.unchangedBy(before, " The capital of Spain"), 4);
  assert.equal(tree.unchangedBy(before, " The capital of France is"), 5);
  assert.equal(tree.unchangedBy(before, " The capital"), 3);
  assert.equal(tree.unchangedBy(before, "Other"), 0);
  const character = [{ id: 1, text: " a" }, { id: 2, text: null }, { id: 3, text: "ř", joins: 1 }];
  assert.equal(tree.unchangedBy(character, " a"), 1);
  assert.equal(tree.unchangedBy(character, " ař b"), 3);
});

test("the rows below a collapsed branch are not visible", () => {
  const { doc, first, second } = sampleTree();
  const collapsed = tree.change(doc, first, { collapsed: true });
  assert.deepEqual(tree.walk(collapsed, true).map(([n, , children]) => [n.id, children]), [["root", 1], [first, 1]]);
  assert.equal(tree.walk(collapsed).at(-1)[0].id, second);
});

test("the text of a branch is the prompt with what follows, without special tokens", () => {
  let doc = tree.change(tree.newTree("Once <b>"), "root", { tokens: [token(0, "<|begin|>"), token(1, "Once"), token(2, " <b>")] });
  let id;
  [doc, id] = tree.add(doc, "root", { tokens: [token(3, " upon"), { ...token(4), text: null }, { ...token(5, "ř"), joins: 1 }] });
  assert.equal(tree.textOf(doc, id), "Once <b> uponř");
});
