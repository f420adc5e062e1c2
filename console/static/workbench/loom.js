// Trees of Loom and Loomsidian. They have texts and no tokens, and a node follows the end of its parent.
//
// Loom's file is {root, selected_node_id}, where a node is {id, text, children, open, tags, name}; older ones are such a node alone.
// Loomsidian's is {current, nodes}, where nodes are {text, parentId, collapsed, bookmarked} by their ids.
import * as prose from "./prose.js";
import * as tree from "./tree.js";

// segments returns the nodes of prompts as [{id, parent, text, name, bookmarked, collapsed}], each after its parent: a node within
// which others part is several. It also returns the id of the selected one. textOf returns a part of a node's text.
function segments(doc, textOf) {
  const all = [];
  const ends = new Map(); // ids of segments by the node and the number of its tokens at which they end
  for (const [node] of tree.walk(doc)) {
    if (node.role) continue;
    const { id, tokens: { length } } = node;
    const cuts = new Set(doc.order.filter((other) => doc.nodes[other].parent === id && doc.nodes[other].at < length).map((other) => doc.nodes[other].at));
    let [from, parent] = [0, node.parent === null ? null : ends.get(`${node.parent}:${node.at}`)];
    for (const to of [...[...cuts].sort((a, b) => a - b), length]) {
      const isLast = to === length;
      const segment = isLast ? id : `${id}-${to}`;
      all.push({ id: segment, parent, text: textOf(node, from, to), ...(isLast && { name: node.name, bookmarked: node.bookmarked }), collapsed: Boolean(node.collapsed) });
      ends.set(`${id}:${to}`, segment);
      [from, parent] = [to, segment];
    }
  }
  return { all, selected: doc.nodes[doc.selected].role ? all[0].id : doc.selected };
}

// partOf returns a function that returns a part of a node's text. resolve adds the text to a token that has none.
const partOf = (doc, resolve) => (node, from, to) => {
  if (node.parent === null && from === 0 && to === node.tokens.length) return node.text;
  const places = node.tokens.map((token, index) => ({ token: resolve(token, node.id), node: node.id, index }));
  return tree.plainText(tree.withoutSpecialTokens(doc, places).filter(({ index }) => index >= from && index < to).map(({ token }) => token));
};

export function asLoom(doc, resolve = (token) => token) {
  const { all, selected } = segments(doc, partOf(doc, resolve));
  const nodes = new Map(all.map(({ id, text, name, bookmarked, collapsed }) => [id, { id, text, open: !collapsed, mutable: true, visited: true, ...(name && { name }), ...(bookmarked && { tags: ["bookmark"] }), children: [] }]));
  const roots = [];
  for (const { id, parent } of all) (parent === null ? roots : nodes.get(parent).children).push(nodes.get(id));
  const root = roots.length === 1 ? roots[0] : { id: "root-of-all", text: "", open: true, mutable: false, visited: true, children: roots };
  return `${JSON.stringify({ root, selected_node_id: selected }, null, 2)}\n`;
}

export function asLoomsidian(doc, resolve = (token) => token) {
  const { all, selected } = segments(doc, partOf(doc, resolve));
  const nodes = Object.fromEntries(all.map(({ id, parent, text, name, bookmarked, collapsed }) => [id, { text, parentId: parent, collapsed, unread: false, bookmarked: Boolean(bookmarked), searchResultState: null, ...(name && { name }) }]));
  return `${JSON.stringify({ current: selected, hoisted: [], searchTerm: "", nodes, generating: null }, null, 2)}\n`;
}

const isNode = (value) => typeof value?.text === "string";

// listOf returns the nodes of a file as segments does, or null if it is of neither program.
function listOf(file) {
  const root = isNode(file?.root) ? file.root : file;
  if (isNode(root) && Array.isArray(root.children)) {
    const all = [];
    const waiting = [[root, null]];
    while (waiting.length) {
      const [node, parent] = waiting.pop();
      if (!isNode(node)) return null;
      const { text, name, tags, open, children = [] } = node;
      const entry = { id: node.id ?? `node ${all.length}`, parent, text, name, bookmarked: Boolean(tags?.includes("bookmark") || node.bookmark), collapsed: open === false && children.length > 0 };
      all.push(entry);
      for (const child of [...children].reverse()) waiting.push([child, entry.id]);
    }
    return { all, selected: file.selected_node_id };
  }
  const nodes = Object.entries(file?.nodes ?? {});
  if (!nodes.length || !nodes.every(([, node]) => isNode(node) && (node.parentId === null || isNode(file.nodes[node.parentId])))) return null;
  return { all: nodes.map(([id, { text, parentId, name, bookmarked, collapsed }]) => ({ id, parent: parentId, text, name, bookmarked: Boolean(bookmarked), collapsed: Boolean(collapsed) })), selected: file.current };
}

// ofLoom returns the document of a file of Loom or Loomsidian, or null if it is neither. Its texts have no token ids until a request
// needs them. The empty root of several prompts is left out.
export function ofLoom(file) {
  const list = listOf(file);
  if (!list) return null;
  const below = new Map();
  for (const entry of list.all) below.set(entry.parent, [...(below.get(entry.parent) ?? []), entry]);
  let doc = { nodes: {}, order: [], selected: null, next: 1 };
  const ids = new Map();
  const waiting = [...(below.get(null) ?? [])].map((entry) => [entry, null]).reverse();
  while (waiting.length) {
    const [{ id, text, name, bookmarked, collapsed }, parent] = waiting.pop();
    const children = below.get(id) ?? [];
    const isLeftOut = parent === null && !text && children.length > 0;
    if (!isLeftOut) {
      let added;
      const fields = { ...(name && { name }), ...(bookmarked && { bookmarked }), ...(collapsed && { collapsed }) };
      [doc, added] = parent === null ? tree.insert(doc, { text, ...fields }) : tree.add(doc, parent, { tokens: prose.own(text), edited: true, ...fields });
      ids.set(id, added);
    }
    for (const child of [...children].reverse()) waiting.push([child, isLeftOut ? null : ids.get(id)]);
  }
  if (!doc.order.length) return null;
  return { ...doc, selected: ids.get(list.selected) ?? doc.order[0] };
}
