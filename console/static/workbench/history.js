// What can be undone: the changes of nodes, so that what is generated meanwhile stays.
const done = [];
const undone = [];
const most = 500;

export function clear() {
  done.length = 0;
  undone.length = 0;
}

// record keeps what has changed from one document to another, of the nodes with these ids if they are given. joins says that it
// belongs to the change before, as when a word is typed.
export function record(before, after, { ids = null, joins = false } = {}) {
  const all = ids ?? new Set([...before.order, ...after.order]);
  const nodes = new Map([...all].filter((id) => before.nodes[id] !== after.nodes[id]).map((id) => [id, [before.nodes[id], after.nodes[id]]]));
  if (!nodes.size) return;
  undone.length = 0;
  const last = done.at(-1);
  if (joins && last && [...nodes.keys()].every((id) => last.nodes.has(id))) {
    for (const [id, [, node]] of nodes) last.nodes.get(id)[1] = node;
    last.sides[1] = after;
    return;
  }
  done.push({ nodes, sides: [before, after] });
  if (done.length > most) done.shift();
}

// replace is called when a node is another one without a change of the user, as when its text gets its tokens.
export function replace(old, node) {
  for (const { nodes } of [...done, ...undone]) {
    const values = nodes.get(old.id);
    for (const side of [0, 1]) if (values?.[side] === old) values[side] = node;
  }
}

// step returns the document without the last change, or with the one that was undone last. null: there is none.
export function step(doc, back) {
  const change = (back ? done : undone).pop();
  if (!change) return null;
  (back ? undone : done).push(change);
  const side = back ? 0 : 1;
  const nodes = { ...doc.nodes };
  for (const [id, values] of change.nodes) if (values[side]) nodes[id] = values[side];
  // A node that goes takes along what follows it, unless that is none of this change: then it stays.
  const goes = new Set([...change.nodes].filter(([, values]) => !values[side]).map(([id]) => id));
  const follows = (id) => Object.values(nodes).some((node) => node.parent === id && (!goes.has(node.id) || follows(node.id)));
  const removed = [...goes].filter((id) => !follows(id));
  for (const id of removed) delete nodes[id];
  const { order, selected } = change.sides[side];
  const known = new Set(order);
  const all = [...order, ...doc.order.filter((id) => !known.has(id))].filter((id) => nodes[id]);
  return { ...doc, nodes, order: all, selected: [selected, doc.selected, all[0]].find((id) => nodes[id]) };
}
