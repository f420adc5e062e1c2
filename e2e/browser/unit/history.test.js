import assert from "node:assert/strict";
import { beforeEach, test } from "node:test";
import * as history from "../../../console/static/workbench/history.js";
import * as prose from "../../../console/static/workbench/prose.js";
import * as tree from "../../../console/static/workbench/tree.js";

beforeEach(() => history.clear());

// does makes a change, and records it.
function does(doc, change, options) {
  const next = change(doc);
  history.record(doc, next, options);
  return next;
}

const typed = (text) => (doc) => prose.write(doc, doc.selected, text);
const text = (doc) => prose.textOf(doc, doc.selected);

test("everything is undone and redone, and typing by words", () => {
  let doc = does(tree.newTree(""), typed("O"));
  doc = does(doc, typed("On"), { joins: true });
  doc = does(doc, typed("On "));
  doc = history.step(doc, true);
  assert.equal(text(doc), "On");
  doc = history.step(doc, true);
  assert.equal(text(doc), "");
  assert.equal(history.step(doc, true), null);
  doc = history.step(history.step(doc, false), false);
  assert.equal(text(doc), "On ");
  assert.equal(history.step(doc, false), null);
});

test("a deleted branch comes back where it was, beside what was added since", () => {
  let [doc, first] = tree.add(tree.newTree("p"), "root");
  let second, added;
  [doc, second] = tree.add(doc, first);
  doc = does(doc, (before) => tree.remove(before, first));
  [doc, added] = tree.add(doc, "root");
  const restored = history.step(doc, true);
  assert.deepEqual(restored.order, ["root", first, second, added]);
  assert.deepEqual(history.step(restored, false).order, ["root", added]);
});

test("what is generated after a change stays when the change is undone", () => {
  let doc = does(tree.newTree(""), typed("A prompt"));
  const [id] = [doc.selected];
  let child, generated;
  doc = does(doc, (before) => { const [next, written] = tree.add(before, id, { edited: true }); child = written; return next; });
  [doc, generated] = tree.add(doc, child);
  doc = history.step(doc, true);
  assert.ok(doc.nodes[child] && doc.nodes[generated]);
});
