// The document: trees of runs of tokens. A root is a prompt, tokenized for one model. Every other node follows a token of its
// parent, the last one or an earlier one. Its tokens were generated, or the first one was chosen among alternatives. Nodes
// are immutable: each function returns a new document, so that the page can render the document at any time of a stream.
//
// A node is {id, parent, at, text, model, tokens, made, finish, edited, name, bookmarked, collapsed}: at is the number of the
// parent's tokens that precede it; text and model are set for roots; made is {model, settings, batch} of the request that
// generated it, and finish its finish_reason. edited says that the user wrote its text; the user also sets name, bookmarked
// and collapsed. Those four may be missing. Saved documents contain nodes, so the names of these fields cannot change.
// Conversations are in the same document: their nodes have a role, and turns.js describes them.
//
// A token is {id, text, logprob, top}: text is the text of this token alone, or null if it is not known; logprob is natural,
// or null if it is not known; top is [{id, logprob}], the likeliest first. Words that a user wrote in a conversation have no id.
// Prefixes are made of ids, since the text of a token can be a part of a character. Ids are those of the root's model.
import * as packing from "./packing.js";

const emptyNode = { parent: null, at: 0, text: "", model: null, tokens: [], made: null, finish: null };

export function newTree(text = "") {
  return { nodes: { root: { ...emptyNode, id: "root", text } }, order: ["root"], selected: "root", next: 1 };
}

// partsOf returns the numbers of the tokens that are parts of a character, which the last one of them shows.
export function partsOf(tokens) {
  const parts = new Set();
  tokens.forEach((token, i) => { for (let n = 1; n <= (token.joins ?? 0); n++) parts.add(i - n); });
  return parts;
}

// plainText returns the text of tokens as it was generated. Unknown texts are left out.
export function plainText(tokens) {
  const parts = partsOf(tokens);
  return tokens.map((token, i) => (parts.has(i) ? "" : token.text ?? "")).join("");
}

export const roots = (tree) => tree.order.filter((id) => tree.nodes[id].parent === null);

// rootsOf returns the roots of conversations, or those of prompts.
export const rootsOf = (tree, isChat) => roots(tree).filter((id) => Boolean(tree.nodes[id].role) === isChat);

export function rootOf(tree, id) {
  let node = tree.nodes[id];
  while (node.parent !== null) node = tree.nodes[node.parent];
  return node;
}

// ensureRoot returns the root of a prompt for a model: the existing one, one that has no model yet, or a new one.
export function ensureRoot(tree, text, model) {
  const all = rootsOf(tree, false).map((id) => tree.nodes[id]);
  const existing = all.find((node) => node.text === text && node.model === model);
  if (existing) return [tree, existing.id];
  const unused = all.find((node) => node.model === null && (node.text === "" || node.text === text));
  return unused ? [change(tree, unused.id, { text, model }), unused.id] : insert(tree, { text, model });
}

// insert adds a node with some fields set.
export function insert(tree, fields) {
  const id = `n${tree.next}`;
  return [{ ...tree, nodes: { ...tree.nodes, [id]: { ...emptyNode, ...fields, id } }, order: [...tree.order, id], next: tree.next + 1 }, id];
}

// add adds a child that follows the last token of its parent.
export function add(tree, parent, fields = {}) {
  return insert(tree, { parent, at: tree.nodes[parent].tokens.length, ...fields });
}

export function change(tree, id, fields) {
  const node = tree.nodes[id];
  return node ? { ...tree, nodes: { ...tree.nodes, [id]: { ...node, ...fields } } } : tree;
}

export function select(tree, id) {
  return tree.nodes[id] ? { ...tree, selected: id } : tree;
}

// isLastRoot reports whether a node is the only root of its kind, which cannot be removed.
export const isLastRoot = (tree, id) => tree.nodes[id].parent === null && rootsOf(tree, Boolean(tree.nodes[id].role)).length === 1;

// remove removes a node and its descendants.
export function remove(tree, id) {
  if (!tree.nodes[id] || isLastRoot(tree, id)) return tree;
  const removed = new Set(subtree(tree, id));
  const nodes = Object.fromEntries(Object.entries(tree.nodes).filter(([key]) => !removed.has(key)));
  const remaining = { ...tree, nodes, order: tree.order.filter((key) => !removed.has(key)) };
  return removed.has(tree.selected) ? { ...remaining, selected: tree.nodes[id].parent ?? rootsOf(remaining, Boolean(tree.nodes[id].role))[0] } : remaining;
}

// subtree returns the ids of a node and its descendants.
export function subtree(tree, id) {
  const ids = new Set([id]);
  for (const other of tree.order) if (ids.has(tree.nodes[other].parent)) ids.add(other);
  return [...ids];
}

// childrenOf returns the ids of the children of every node that has any.
function childrenOf(tree) {
  const all = new Map();
  for (const id of tree.order) {
    const { parent } = tree.nodes[id];
    if (parent === null) continue;
    if (!all.has(parent)) all.set(parent, []);
    all.get(parent).push(id);
  }
  return all;
}

// walk returns all nodes with their depths and their numbers of children, each before its children. Nodes below a collapsed
// one are left out if visible is set.
export function walk(tree, visible = false) {
  const all = childrenOf(tree);
  const nodes = [];
  const waiting = roots(tree).map((id) => [id, 0]).reverse();
  while (waiting.length) {
    const [id, depth] = waiting.pop();
    const children = all.get(id) ?? [];
    nodes.push([tree.nodes[id], depth, children.length]);
    if (visible && tree.nodes[id].collapsed) continue;
    for (const child of [...children].reverse()) waiting.push([child, depth + 1]);
  }
  return nodes;
}

// path returns the tokens from the beginning of the prompt to the end of a node, each with its node and its index there.
export function path(tree, id) {
  const node = tree.nodes[id];
  const before = node.parent === null ? [] : pathBefore(tree, node.parent, node.at);
  return [...before, ...node.tokens.map((token, index) => ({ token, node: id, index }))];
}

// pathBefore returns the part of a node's path before the token at that index of the node.
function pathBefore(tree, id, index) {
  const whole = path(tree, id);
  return whole.slice(0, whole.length - tree.nodes[id].tokens.length + index);
}

// prefix returns the ids of the tokens before the one at that index of a node, or of the whole path without an index.
export function prefix(tree, id, index = tree.nodes[id].tokens.length) {
  return pathBefore(tree, id, index).map((place) => place.token.id);
}

// branch adds a node with tokens that replace those from that index of a node on.
export function branch(tree, id, index, tokens) {
  return add(tree, id, { at: index, tokens });
}

// textOf returns the text of a node's path: of the prompt and what follows it, without special tokens. resolve adds the text to
// a place whose token has none.
export function textOf(tree, id, resolve = (place) => place) {
  const tokens = withoutSpecialTokens(tree, path(tree, id).map(resolve)).map(({ token }) => token);
  return tokens.length ? plainText(tokens) : rootOf(tree, id).text;
}

// isSpecial reports whether a token that a model has generated is none of the text, such as <|end_of_text|>.
export const isSpecial = ({ text }) => /^(<\|[^|]*\|>|<\/?s>|<(bos|eos|pad|unk|start_of_turn|end_of_turn)>)$/.test(text ?? "");

// withoutSpecialTokens returns the places without the special tokens that the tokenizer adds at the beginning of a prompt, and
// those that a model has generated. What the user wrote stays.
export function withoutSpecialTokens(tree, places) {
  const isPrompt = ({ node }) => tree.nodes[node].parent === null && !tree.nodes[node].role;
  const prompt = places.filter(isPrompt);
  const kept = new Set(prompt.length ? withoutSpecial(prompt.map(({ token }) => token), tree.nodes[prompt[0].node].text) : []);
  return places.filter((place) => (isPrompt(place) ? kept.has(place.token) : tree.nodes[place.node].edited || !isSpecial(place.token)));
}

// withoutSpecial returns the tokens of a text without the special ones at the beginning, such as <|begin_of_text|>.
export function withoutSpecial(tokens, text) {
  const special = (token) => /^(<.*>|\[.*\]|)$/.test(token.text ?? " ") && !(token.text && text.startsWith(token.text));
  const begin = tokens.findIndex((token) => !special(token));
  return begin < 0 ? [] : tokens.slice(begin);
}

// unchangedBy returns how many of the tokens a changed text keeps. A word at the place of the change is not kept in part, so
// that it gets the tokens that it usually has.
export function unchangedBy(tokens, text) {
  const parts = partsOf(tokens);
  let kept = 0;
  let length = 0;
  for (let i = 0; i < tokens.length; i++) {
    if (parts.has(i)) continue;
    const piece = tokens[i].text;
    if (piece === null || !text.startsWith(piece, length)) break;
    length += piece.length;
    kept = i + 1;
  }
  if (kept === tokens.length && length === text.length) return kept;
  while (kept > 0 && !/^\s/.test(tokens[kept]?.text ?? " ") && !/\s$/.test(tokens[kept - 1].text ?? "")) kept--;
  while (kept > 0 && parts.has(kept - 1)) kept--;
  return kept;
}

const packedNodes = new WeakMap(); // {stored, bytes} by node: nodes are immutable

function packed(node) {
  if (!packedNodes.has(node)) {
    const { tokens, ...fields } = node;
    const stored = { ...fields, tokens: packing.packTokens(tokens) };
    packedNodes.set(node, { stored, bytes: packing.bytesOf({ ...fields, tokens: 0 }) + packing.bytesOfPacked(stored.tokens) });
  }
  return packedNodes.get(node);
}

// packNode returns a node as the browser stores it, and unpackNode reverses it.
export const packNode = (node) => packed(node).stored;
export const unpackNode = (stored) => ({ ...stored, tokens: packing.unpackTokens(stored.tokens) });

// bytesOf returns about how long the JSON of pack is.
export const bytesOf = (tree) => tree.order.reduce((sum, id) => sum + packed(tree.nodes[id]).bytes, 0);

// pack returns a tree as it is saved. Earlier versions of the workbench, whose formats are 1 and 2, refuse it.
export function pack(tree) {
  const nodes = tree.order.map((id) => packNode(tree.nodes[id])).map((stored) => ({ ...stored, tokens: packing.asJSON(stored.tokens) }));
  return { format: 3, nodes, selected: tree.selected, next: tree.next };
}

// fromNodes returns the tree of a list of nodes, the root first.
export function fromNodes(list, selected, next) {
  const nodes = Object.fromEntries(list.map((n) => [n.id, n]));
  return { nodes, order: list.map((n) => n.id), selected: nodes[selected] ? selected : list[0].id, next };
}

// unpack returns a tree that pack has saved. It throws if another version has saved it in another format. Formats 1 and 2 have
// tokens as they are in nodes.
export function unpack(saved) {
  if (![1, 2, 3].includes(saved?.format) || !Array.isArray(saved.nodes) || saved.nodes[0]?.parent !== null) {
    throw new Error("This was saved by another version of the workbench, which this one cannot read.");
  }
  const nodes = saved.format < 3 ? saved.nodes : saved.nodes.map((n) => unpackNode({ ...n, tokens: packing.ofJSON(n.tokens) }));
  return fromNodes(nodes, saved.selected, saved.next);
}
