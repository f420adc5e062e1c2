import assert from "node:assert/strict";
import { test } from "node:test";
import * as tree from "../../../console/static/workbench/tree.js";

const token = (id, text = `t${id}`) => ({ id, text, logprob: -1, top: [] });
const tokens = (...ids) => ids.map((id) => token(id));

function grown() {
  let doc = tree.change(tree.newTree("prompt"), "root", { tokens: tokens(1, 2, 3) });
  let first, second;
  [doc, first] = tree.add(doc, "root", { tokens: tokens(4, 5, 6) });
  [doc, second] = tree.branch(doc, first, 1, token(50));
  return { doc, first, second };
}

test("a prefix is exactly the ids before a place, whatever it goes through", () => {
  const { doc, first, second } = grown();
  assert.deepEqual(tree.prefix(doc, "root"), [1, 2, 3]);
  assert.deepEqual(tree.prefix(doc, first), [1, 2, 3, 4, 5, 6]);
  assert.deepEqual(tree.prefix(doc, first, 2), [1, 2, 3, 4, 5]);
  assert.deepEqual(tree.prefix(doc, second), [1, 2, 3, 4, 50]);
  assert.deepEqual(tree.prefix(doc, second, 0), [1, 2, 3, 4]);
});

test("a branch within the prompt leaves the rest of the prompt out", () => {
  const [doc, id] = tree.branch(grown().doc, "root", 1, token(20));
  assert.deepEqual(tree.prefix(doc, id), [1, 20]);
  assert.deepEqual(tree.path(doc, id).map((p) => [p.node, p.index]), [["root", 0], [id, 0]]);
});

test("a branch of a branch goes through both", () => {
  const { doc, second } = grown();
  const longer = tree.change(doc, second, { tokens: tokens(50, 51, 52) });
  const [last, id] = tree.branch(longer, second, 2, token(99));
  assert.deepEqual(tree.prefix(last, id), [1, 2, 3, 4, 50, 51, 99]);
});

test("what a tree was stays as it was", () => {
  const { doc, first } = grown();
  const before = JSON.stringify(doc);
  tree.remove(tree.change(doc, first, { tokens: [] }), first);
  tree.branch(doc, first, 0, token(7));
  assert.equal(JSON.stringify(doc), before);
});

test("a removed node takes what stands behind it along, and the root stays", () => {
  const { doc, first, second } = grown();
  const left = tree.remove(tree.select(doc, second), first);
  assert.deepEqual(left.order, ["root"]);
  assert.equal(left.selected, "root");
  assert.equal(tree.remove(doc, "root"), doc);
});

test("what is packed is what is unpacked", () => {
  const { doc } = grown();
  assert.deepEqual(tree.unpack(JSON.parse(JSON.stringify(tree.pack(doc)))), doc);
  assert.throws(() => tree.unpack({ format: 2, nodes: [] }), /another version/);
  assert.throws(() => tree.unpack(null), /another version/);
});

test("nodes are listed parents first", () => {
  const { doc, first, second } = grown();
  assert.deepEqual(tree.walk(doc).map(([n, depth]) => [n.id, depth]), [["root", 0], [first, 1], [second, 2]]);
});

test("each prompt at each model has a root of its own, and only one", () => {
  const text = "prompt";
  let doc = tree.newTree();
  let a, b, c, again;
  [doc, a] = tree.ensureRoot(doc, text, "m");
  assert.equal(a, "root"); // which was nobody's
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
  const left = tree.remove(tree.select(doc, leaf), b);
  assert.deepEqual(left.order, [a, c]);
  assert.equal(left.selected, a);
});

test("a prompt that is only written becomes that of the model that is asked first", () => {
  let doc, written, asked;
  [doc, written] = tree.ensureRoot(tree.newTree(), "draft", null);
  [doc, asked] = tree.ensureRoot(doc, "draft", "m");
  assert.equal(asked, written);
  assert.equal(doc.nodes[asked].model, "m");
});
