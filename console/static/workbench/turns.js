// Conversations in the document. The root of a conversation is its system message, whose text may be empty. Every other node is
// a turn, which follows its parent. Versions of a turn are the children of one parent. A conversation is sent as text: the
// tokens of an assistant's turn are there to be read, and to branch at.
//
// Such a node has besides the fields that tree.js describes: role ("system", "user", "assistant" or "tool"), reasoning (text),
// calls ([{id, name, arguments}], the functions that an assistant asks for) and call (the id that a tool's turn is the result of).
// Its text is the content of the message. Saved documents contain nodes, so the names of these fields cannot change.
import * as tree from "./tree.js";

export const isChat = (doc) => Boolean(tree.rootOf(doc, doc.selected).role);

// addConversation adds the root of a conversation.
export const addConversation = (doc, text = "") => tree.insert(doc, { role: "system", text });

// addTurn adds a turn after its parent.
export const addTurn = (doc, parent, fields) => tree.insert(doc, { parent, at: 0, ...fields });

// addVersion adds another version of a turn, with some fields changed. Nothing follows it.
export function addVersion(doc, id, fields) {
  const { id: old, name, bookmarked, collapsed, ...turn } = doc.nodes[id];
  return tree.insert(doc, { ...turn, ...fields });
}

// thread returns the nodes from the system message to a turn.
export function thread(doc, id) {
  const nodes = [];
  for (let node = doc.nodes[id]; node; node = doc.nodes[node.parent]) nodes.unshift(node);
  return nodes;
}

const childrenOf = (doc, id) => doc.order.filter((other) => doc.nodes[other].parent === id);

// versions returns the ids of the versions of a turn, in the order in which they were made.
export const versions = (doc, id) => childrenOf(doc, doc.nodes[id].parent);

// isLeaf reports whether nothing follows a turn.
export const isLeaf = (doc, id) => childrenOf(doc, id).length === 0;

// leafOf returns the last turn of the newest conversation that goes through a turn.
export function leafOf(doc, id) {
  for (;;) {
    const last = childrenOf(doc, id).at(-1);
    if (last === undefined) return id;
    id = last;
  }
}

// withSystem changes the system message of the selected conversation. If turns follow it, they keep the one that they have
// followed, and are copied below a new root.
export function withSystem(doc, text) {
  const [root, ...turns] = thread(doc, doc.selected);
  if (root.text === text) return doc;
  if (isLeaf(doc, root.id)) return tree.change(doc, root.id, { text });
  let [next, id] = addConversation(doc, text);
  for (const { id: old, parent, ...turn } of turns) [next, id] = addTurn(next, id, turn);
  return tree.select(next, id);
}

// messageOf returns a turn as the API takes it.
function messageOf({ role, text, calls, call }) {
  if (role === "tool") return { role, tool_call_id: call, content: text };
  if (!calls?.length) return { role, content: text };
  const tool_calls = calls.map(({ id, name, arguments: given }) => ({ id, type: "function", function: { name, arguments: given } }));
  return { role, content: text || null, tool_calls };
}

// messagesOf returns the messages of a conversation up to a turn. An empty system message is not sent.
export const messagesOf = (doc, id) => thread(doc, id).filter(({ role, text }) => role !== "system" || text.trim()).map(messageOf);

// openCalls returns the calls before the end of a conversation that have no result yet.
export function openCalls(doc, id) {
  const turns = thread(doc, id);
  const last = turns.findLastIndex(({ role }) => role !== "tool");
  const answered = new Set(turns.slice(last + 1).map(({ call }) => call));
  return (turns[last].calls ?? []).filter((call) => !answered.has(call.id));
}

// words returns a text that no model has generated as tokens: a word with its spaces each, without an id.
export const words = (text) => (text.match(/\s*\S+|\s+$/g) ?? []).map((word) => ({ id: null, text: word, logprob: null, top: [] }));

// cut returns the text and the tokens of a turn before one of its tokens, or before the character that this is a part of.
// resolve adds the text to a token that has none. The text is null if a token's text is not known.
export function cut(turn, index, resolve = (token) => token) {
  const parts = tree.partsOf(turn.tokens);
  while (index > 0 && parts.has(index - 1)) index--;
  const tokens = turn.tokens.slice(0, index);
  const resolved = tokens.map(resolve);
  return { tokens, text: resolved.some((token, i) => token.text === null && !parts.has(i)) ? null : tree.plainText(resolved) };
}

const mostDropped = 4; // a character has up to 4 tokens

// within returns the tokens of a turn without those at its end that are no part of its text: one that ends the turn, or the
// beginning of a character.
export function within({ tokens, text }) {
  for (let dropped = 0; dropped <= Math.min(tokens.length, mostDropped); dropped++) {
    const kept = tokens.slice(0, tokens.length - dropped);
    if (kept.at(-1)?.text !== null && tree.plainText(kept) === text) return kept;
  }
  return tokens;
}

// endsText reports whether the text of a token is one with which a model ends a turn, such as <|eot_id|>.
export const endsText = (text) => /^<\|[^|]*\|>$|^<\/s>$|^<(eos|end_of_turn)>$/.test(text);
