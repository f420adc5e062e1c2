import assert from "node:assert/strict";
import { test } from "node:test";
import * as tree from "../../../console/static/workbench/tree.js";
import * as turns from "../../../console/static/workbench/turns.js";

const token = (text, more = {}) => ({ id: 1, text, logprob: -1, top: [], ...more });

// converse returns a document with a conversation, and the ids of its nodes, the root first.
function converse(system, ...fields) {
  let [doc, id] = turns.addConversation(tree.newTree("a prompt"), system);
  const ids = [id];
  for (const turn of fields) {
    [doc, id] = turns.addTurn(doc, id, turn);
    ids.push(id);
  }
  return { doc: tree.select(doc, id), ids };
}

const user = (text) => ({ role: "user", text });
const assistant = (text, more = {}) => ({ role: "assistant", text, tokens: turns.words(text), ...more });
const call = (id, name = "weather") => ({ id, name, arguments: "{\"city\":\"Prague\"}" });

test("the messages of a conversation are those of the thread, without an empty system message", () => {
  const { doc, ids } = converse("Be brief.", user("Hello"), assistant("Hi"), user("More"));
  const messages = [{ role: "system", content: "Be brief." }, { role: "user", content: "Hello" }, { role: "assistant", content: "Hi" }, { role: "user", content: "More" }];
  assert.deepEqual(turns.messagesOf(doc, doc.selected), messages);
  assert.deepEqual(turns.messagesOf(doc, ids[1]), messages.slice(0, 2));
  const silent = converse("  ", user("Hello"));
  assert.deepEqual(turns.messagesOf(silent.doc, silent.doc.selected), [{ role: "user", content: "Hello" }]);
});

test("calls and their results are sent as the API takes them", () => {
  const { doc } = converse("", user("Weather?"), assistant("", { calls: [call("c1"), call("c2", "time")] }), { role: "tool", call: "c1", text: "sunny" });
  const [, asked, result] = turns.messagesOf(doc, doc.selected);
  assert.equal(asked.content, null);
  assert.deepEqual(asked.tool_calls[0], { id: "c1", type: "function", function: { name: "weather", arguments: "{\"city\":\"Prague\"}" } });
  assert.deepEqual(result, { role: "tool", tool_call_id: "c1", content: "sunny" });
});

test("calls are open until each has a result", () => {
  const { doc, ids } = converse("", user("Weather?"), assistant("", { calls: [call("c1"), call("c2", "time")] }), { role: "tool", call: "c1", text: "sunny" });
  assert.deepEqual(turns.openCalls(doc, ids[2]).map(({ id }) => id), ["c1", "c2"]);
  assert.deepEqual(turns.openCalls(doc, doc.selected).map(({ id }) => id), ["c2"]);
  const [answered, last] = turns.addTurn(doc, doc.selected, { role: "tool", call: "c2", text: "noon" });
  assert.deepEqual(turns.openCalls(answered, last), []);
});

test("a version is a sibling that nothing follows, and keeps the old one as it was", () => {
  const { doc, ids } = converse("", user("Hello"), { ...assistant("Hi"), name: "good", bookmarked: true }, user("More"));
  const [next, id] = turns.addVersion(doc, ids[2], { text: "Ho" });
  assert.deepEqual(turns.versions(next, id), [ids[2], id]);
  assert.equal(next.nodes[id].name, undefined);
  assert.equal(next.nodes[ids[2]].text, "Hi");
  assert.equal(turns.isLeaf(next, id), true);
  assert.equal(turns.leafOf(next, ids[2]), ids[3]);
  assert.equal(turns.leafOf(next, ids[0]), id);
});

test("another system message leaves the turns that followed the old one", () => {
  const { doc, ids } = converse("Be brief.", user("Hello"), assistant("Hi"));
  const next = turns.withSystem(doc, "Be long.");
  assert.equal(next.nodes[ids[0]].text, "Be brief.");
  assert.deepEqual(turns.messagesOf(next, next.selected).map(({ content }) => content), ["Be long.", "Hello", "Hi"]);
  assert.deepEqual(turns.messagesOf(next, ids[2]).map(({ content }) => content), ["Be brief.", "Hello", "Hi"]);
  assert.equal(turns.withSystem(next, "Be long."), next);
  const empty = converse("");
  const changed = turns.withSystem(empty.doc, "First");
  assert.equal(changed.nodes[empty.ids[0]].text, "First");
  assert.equal(changed.order.length, empty.doc.order.length);
});

test("words join to the text that they were made of", () => {
  for (const text of ["", "one", " two  words\n\nand a line ", "  \n"]) assert.equal(tree.plainText(turns.words(text)), text);
  assert.equal(turns.words("one two").length, 2);
});

test("a turn is cut before a token, and not within a character", () => {
  const turn = { tokens: [token("Caf"), token("\ufffd"), token("é", { joins: 1 }), token(null), token("!")] };
  assert.equal(turns.cut(turn, 1).text, "Caf");
  assert.equal(turns.cut(turn, 2).text, "Caf");
  assert.equal(turns.cut(turn, 2).tokens.length, 1);
  assert.equal(turns.cut(turn, 3).text, "Café");
  assert.equal(turns.cut(turn, 4).text, null);
  assert.equal(turns.cut(turn, 4, (t) => ({ ...t, text: t.text ?? " is" })).text, "Café is");
});

test("a turn is continued after the tokens of its text alone", () => {
  const kept = (text, ...tokens) => turns.within({ text, tokens }).length;
  assert.equal(kept("Hi you", token("Hi"), token(" you")), 2);
  assert.equal(kept("Hi", token("Hi"), token("")), 2); // it adds nothing
  assert.equal(kept("Hi", token("Hi"), token("\ufffd")), 1);
  assert.equal(kept("Hi", token("Hi"), token(null)), 1);
  assert.equal(kept("", token("\ufffd")), 0);
  assert.equal(kept("Hi you", token("Hi"), token("?")), 2); // the tokens do not make the text: they are kept as they are
});

test("conversations and prompts are kept apart in a document", () => {
  const { doc, ids } = converse("System", user("Hello"));
  assert.deepEqual(tree.rootsOf(doc, false), ["root"]);
  assert.deepEqual(tree.rootsOf(doc, true), [ids[0]]);
  assert.equal(tree.remove(doc, ids[0]), doc);
  assert.equal(turns.isChat(doc), true);
  const [other, root] = tree.ensureRoot(doc, "System", "llama");
  assert.notEqual(root, ids[0]);
  assert.equal(other.nodes[ids[0]].model, null);
  const [two, second] = turns.addConversation(doc, "Another");
  assert.equal(tree.remove(two, ids[0]).selected, second);
});

test("a document with a conversation is unpacked as it was, also in the format of older versions", () => {
  const { doc } = converse("System", user("Hello"), assistant("Hi", { reasoning: "Hm", calls: [call("c")] }));
  assert.deepEqual(tree.unpack({ format: 2, nodes: doc.order.map((id) => doc.nodes[id]), selected: doc.selected, next: doc.next }), doc);
  assert.deepEqual(tree.unpack(JSON.parse(JSON.stringify(tree.pack(doc)))), doc);
});
