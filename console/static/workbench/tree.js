// The document: trees of runs of tokens. A root is a prompt, tokenized for one model. Every other node follows a token of its
// parent, the last one or an earlier one. Its tokens were generated, or the first one was chosen among alternatives. Nodes
// are immutable: each function returns a new document, so that the page can render the document at any time of a stream.
//
// A node is {id, parent, at, text, model, tokens, made, finish}: at is the number of the parent's tokens that precede it; text
// and model are set for roots; made is {model, settings, batch} of the request that generated it, and finish its
// finish_reason. Saved documents contain nodes, so the names of these fields cannot change.
//
// A token is {id, text, logprob, top}: text is the text of this token alone, or null if it is not known; logprob is natural,
// or null if it is not known; top is [{id, logprob}], the likeliest first. Prefixes are made of ids, since the text of a
// token can be a part of a character. Ids are those of the root's model.

const emptyNode = { parent: null, at: 0, text: "", model: null, tokens: [], made: null, finish: null };

export function newTree(text = "") {
  return { nodes: { root: { ...emptyNode, id: "root", text } }, order: ["root"], selected: "root", next: 1 };
}

export const roots = (tree) => tree.order.filter((id) => tree.nodes[id].parent === null);

export function rootOf(tree, id) {
  let node = tree.nodes[id];
  while (node.parent !== null) node = tree.nodes[node.parent];
  return node;
}

// ensureRoot returns the root of a prompt for a model: the existing one, one that has no model yet, or a new one.
export function ensureRoot(tree, text, model) {
  const all = roots(tree).map((id) => tree.nodes[id]);
  const existing = all.find((node) => node.text === text && node.model === model);
  if (existing) return [tree, existing.id];
  const unused = all.find((node) => node.model === null && (node.text === "" || node.text === text));
  return unused ? [change(tree, unused.id, { text, model }), unused.id] : insert(tree, { text, model });
}

function insert(tree, fields) {
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

// remove removes a node and its descendants. The last root cannot be removed.
export function remove(tree, id) {
  if (!tree.nodes[id] || (tree.nodes[id].parent === null && roots(tree).length === 1)) return tree;
  const removed = new Set([id]);
  for (const other of tree.order) if (removed.has(tree.nodes[other].parent)) removed.add(other);
  const nodes = Object.fromEntries(Object.entries(tree.nodes).filter(([key]) => !removed.has(key)));
  const remaining = { ...tree, nodes, order: tree.order.filter((key) => !removed.has(key)) };
  return removed.has(tree.selected) ? { ...remaining, selected: tree.nodes[id].parent ?? roots(remaining)[0] } : remaining;
}

export function children(tree, id) {
  return tree.order.filter((key) => tree.nodes[key].parent === id);
}

// walk returns all nodes with their depths, each before its children.
export function walk(tree) {
  const from = (id, depth) => [[tree.nodes[id], depth], ...children(tree, id).flatMap((child) => from(child, depth + 1))];
  return roots(tree).flatMap((id) => from(id, 0));
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

// branch adds a node with a token that replaces the one at that index of a node.
export function branch(tree, id, index, token) {
  return add(tree, id, { at: index, tokens: [token] });
}

// pack returns a tree as it is saved.
export function pack(tree) {
  return { format: 1, nodes: tree.order.map((id) => tree.nodes[id]), selected: tree.selected, next: tree.next };
}

// unpack returns a tree that pack has saved. It throws if another version has saved it in another format.
export function unpack(saved) {
  if (saved?.format !== 1 || !Array.isArray(saved.nodes) || saved.nodes[0]?.parent !== null) {
    throw new Error("This was saved by another version of the workbench, which this one cannot read.");
  }
  const nodes = Object.fromEntries(saved.nodes.map((n) => [n.id, n]));
  return { nodes, order: saved.nodes.map((n) => n.id), selected: nodes[saved.selected] ? saved.selected : saved.nodes[0].id, next: saved.next };
}
