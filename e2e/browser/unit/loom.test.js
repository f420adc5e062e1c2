import assert from "node:assert/strict";
import { test } from "node:test";
import { ofDocument } from "../../../console/static/workbench/files.js";
import * as loom from "../../../console/static/workbench/loom.js";
import * as prose from "../../../console/static/workbench/prose.js";
import * as tree from "../../../console/static/workbench/tree.js";

const tokens = (...texts) => texts.map((text, i) => ({ id: i, text, logprob: -1, top: [] }));

// sample returns a document in which branches part within a node, with two prompts, a name, a bookmark and a collapsed node.
function sample() {
  let doc = tree.change(tree.newTree("Once"), "root", { model: "m", tokens: tokens("<|begin|>", "Once") });
  let a, b, c;
  [doc, a] = tree.add(doc, "root", { tokens: tokens(" upon", " a", " time", "<|end|>"), name: "usual", bookmarked: true, collapsed: true });
  [doc, b] = tree.branch(doc, a, 2, tokens(" hill\n", " far"));
  [doc, c] = tree.branch(doc, a, 1, tokens(" the"));
  [doc] = tree.ensureRoot(doc, "Another prompt", "m");
  return { doc: tree.select(doc, b), ids: [a, b, c] };
}

const leaves = (doc) => doc.order.filter((id) => !doc.order.some((other) => doc.nodes[other].parent === id)).map((id) => prose.textOf(doc, id)).sort();
const expected = ["Another prompt", "Once upon a hill\n far", "Once upon a time", "Once upon the"];

for (const [name, write] of [["Loom", loom.asLoom], ["Loomsidian", loom.asLoomsidian]]) {
  test(`a tree goes to ${name} and back with its texts, its names and its marks`, () => {
    const { doc } = sample();
    const written = write(doc);
    const back = loom.ofLoom(JSON.parse(written));
    assert.deepEqual(leaves(back), expected);
    assert.equal(prose.textOf(back, back.selected), "Once upon a hill\n far");
    const named = back.order.map((id) => back.nodes[id]).filter((node) => node.name);
    assert.deepEqual(named.map(({ name: n, bookmarked }) => [n, bookmarked]), [["usual", true]]);
    assert.equal(prose.textOf(back, named[0].id), "Once upon a time");
    const again = loom.ofLoom(JSON.parse(write(back)));
    assert.deepEqual(leaves(again), expected);
    assert.equal(again.order.length, back.order.length);
    assert.deepEqual(leaves(tree.unpack(ofDocument(written).document.tree)), expected);
  });
}

test("files that Loom and Loomsidian write are read", () => {
  const root = { mutable: false, visited: true, text: "", children: [{ text: "A prompt", children: [{ id: "x", text: " goes on", children: [], tags: ["bookmark"] }] }] };
  for (const file of [{ root, selected_node_id: "x" }, root]) assert.deepEqual(leaves(loom.ofLoom(file)), ["A prompt goes on"]);
  const node = (text, parentId) => ({ text, parentId, collapsed: false, unread: false, bookmarked: false, lastVisited: 1, searchResultState: null });
  const file = { current: "c", hoisted: [], searchTerm: "", generating: null, nodes: { c: node(" two", "a"), a: node("One", null), b: node(" three", "a") } };
  const doc = loom.ofLoom(file);
  assert.deepEqual(leaves(doc), ["One three", "One two"]);
  assert.equal(prose.textOf(doc, doc.selected), "One two");
});

test("other files are refused", () => {
  for (const file of [null, [], {}, { nodes: [] }, { root: {} }, { nodes: { a: { text: "x", parentId: "b" } } }, { text: "x", children: [{}] }]) assert.equal(loom.ofLoom(file), null);
  assert.throws(() => ofDocument("[]"), /This is not a document of the workbench/);
});

test("a change within imported text begins a branch before it, whose place has no token ids yet", () => {
  const doc = loom.ofLoom({ text: "P", children: [{ text: " one\ntwo\nthree", children: [{ text: " four", children: [] }] }] });
  const [, first, last] = doc.order;
  const next = prose.write(doc, last, "P one\nTWO\nthree four");
  assert.equal(prose.textOf(next, next.selected), "P one\nTWO\nthree four");
  assert.deepEqual([next.nodes[next.selected].parent, next.nodes[next.selected].at], [doc.order[0], 0]);
  assert.equal(prose.textOf(next, first), "P one\ntwo\nthree");
});
