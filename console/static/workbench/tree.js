// The document: trees of runs of tokens. A root is a prompt as one model's tokenizer sees it; every other node goes on
// behind a token of its parent, the last or any before it, and was generated, or begins with a token that somebody chose.
// Nodes are never changed in place: each function returns a new document, so that a stream can be drawn at any moment.
//
// A token is {id, text, logprob, top}: text is what it looks like by itself, null as long as nobody has asked; logprob is
// natural, null where it is not known; top is [{id, logprob}], the likeliest first. The ids are the truth: the text of a
// token can be a part of a character, and only ids make a prefix exact. They are ids of the root's model alone.

const bare = { parent: null, at: 0, text: "", model: null, tokens: [], made: null, finish: null };

export function newTree(text = "") {
  return { nodes: { root: { ...bare, id: "root", text } }, order: ["root"], selected: "root", next: 1 };
}

export const roots = (tree) => tree.order.filter((id) => tree.nodes[id].parent === null);

export function rootOf(tree, id) {
  let node = tree.nodes[id];
  while (node.parent !== null) node = tree.nodes[node.parent];
  return node;
}

// plant gives the root of a prompt at a model: the one there is, one that is no model's yet, or a new one.
export function plant(tree, text, model) {
  const all = roots(tree).map((id) => tree.nodes[id]);
  const same = all.find((node) => node.text === text && node.model === model);
  if (same) return [tree, same.id];
  const free = all.find((node) => node.model === null && (node.text === "" || node.text === text));
  return free ? [change(tree, free.id, { text, model }), free.id] : put(tree, { text, model });
}

function put(tree, fields) {
  const id = `n${tree.next}`;
  return [{ ...tree, nodes: { ...tree.nodes, [id]: { ...bare, ...fields, id } }, order: [...tree.order, id], next: tree.next + 1 }, id];
}

export function add(tree, parent, fields = {}) {
  return put(tree, { parent, at: tree.nodes[parent].tokens.length, ...fields });
}

export function change(tree, id, fields) {
  const node = tree.nodes[id];
  return node ? { ...tree, nodes: { ...tree.nodes, [id]: { ...node, ...fields } } } : tree;
}

export function select(tree, id) {
  return tree.nodes[id] ? { ...tree, selected: id } : tree;
}

// remove takes a node out with all that stands behind it. The last root stays.
export function remove(tree, id) {
  if (!tree.nodes[id] || (tree.nodes[id].parent === null && roots(tree).length === 1)) return tree;
  const gone = new Set([id]);
  for (const other of tree.order) if (gone.has(tree.nodes[other].parent)) gone.add(other);
  const nodes = Object.fromEntries(Object.entries(tree.nodes).filter(([key]) => !gone.has(key)));
  const left = { ...tree, nodes, order: tree.order.filter((key) => !gone.has(key)) };
  return gone.has(tree.selected) ? { ...left, selected: tree.nodes[id].parent ?? roots(left)[0] } : left;
}

export function children(tree, id) {
  return tree.order.filter((key) => tree.nodes[key].parent === id);
}

// walk lists all nodes as they are drawn, parents first, with how deep each is.
export function walk(tree) {
  const from = (id, depth) => [[tree.nodes[id], depth], ...children(tree, id).flatMap((child) => from(child, depth + 1))];
  return roots(tree).flatMap((id) => from(id, 0));
}

// line is the tokens from the beginning of the prompt to the end of a node, each with whose it is.
export function line(tree, id) {
  const node = tree.nodes[id];
  const before = node.parent === null ? [] : cut(tree, node.parent, node.at);
  return [...before, ...node.tokens.map((token, index) => ({ token, node: id, index }))];
}

// cut is the line of a node up to but without its token at index.
function cut(tree, id, index) {
  const whole = line(tree, id);
  return whole.slice(0, whole.length - tree.nodes[id].tokens.length + index);
}

// prefix is the ids of all tokens before the one at index of a node; without an index, of all to its end.
export function prefix(tree, id, index = tree.nodes[id].tokens.length) {
  return cut(tree, id, index).map((place) => place.token.id);
}

// branch begins another way with a token in place of the one at index of a node.
export function branch(tree, id, index, token) {
  return add(tree, id, { at: index, tokens: [token] });
}

// pack is what is saved of a tree, and unpack reads it. What another version has saved, and this one cannot read, is an
// error and not an empty document.
export function pack(tree) {
  return { format: 1, nodes: tree.order.map((id) => tree.nodes[id]), selected: tree.selected, next: tree.next };
}

export function unpack(saved) {
  if (saved?.format !== 1 || !Array.isArray(saved.nodes) || saved.nodes[0]?.parent !== null) {
    throw new Error("This was saved by another version of the workbench, which this one cannot read.");
  }
  const nodes = Object.fromEntries(saved.nodes.map((n) => [n.id, n]));
  return { nodes, order: saved.nodes.map((n) => n.id), selected: nodes[saved.selected] ? saved.selected : saved.nodes[0].id, next: saved.next };
}
