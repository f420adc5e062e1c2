// The text of a branch as one: what is shown of it, what a change of it makes of the tree, and where branches part.
//
// What a person writes is a node of its own, with edited set. Until a request needs them it has no token ids: its tokens are its
// lines, without ids. While nothing follows such a node, it grows in its place; others can follow its end only.
import * as tree from "./tree.js";

// own returns a text that no model has tokenized as tokens, a line each.
export const own = (text) => (text.match(/[^\n]*\n|[^\n]+/g) ?? []).map((line) => ({ id: null, text: line, logprob: null, top: [] }));

const same = (place) => place;
const isLeaf = (doc, id) => !doc.order.some((other) => doc.nodes[other].parent === id);

// isDraft reports whether a node has a person's text without token ids.
export const isDraft = (doc, id) => Boolean(doc.nodes[id].edited) && doc.nodes[id].tokens.every((token) => token.id === null);

// partsOf returns the text of a branch in two parts: of the prompt, and the places of what follows it.
function partsOf(doc, id, resolve) {
  const root = tree.rootOf(doc, id);
  const places = tree.withoutSpecialTokens(doc, tree.path(doc, id).map(resolve));
  const rest = places.filter(({ node }) => node !== root.id);
  const first = tree.path(doc, id).find(({ node }) => node !== root.id);
  const isWhole = !first || doc.nodes[first.node].parent !== root.id || doc.nodes[first.node].at >= root.tokens.length;
  return { root, rest, prompt: isWhole ? root.text : tree.plainText(places.filter(({ node }) => node === root.id).map(({ token }) => token)) };
}

// textOf returns the text of a branch. resolve adds the text to a place whose token has none.
export function textOf(doc, id, resolve = same) {
  const { prompt, rest } = partsOf(doc, id, resolve);
  return prompt + tree.plainText(rest.map(({ token }) => token));
}

// placesOf returns what is shown of a branch, as tree.path does. A prompt whose tokens have no probabilities is shown as lines.
const linesOfRoots = new WeakMap();
export function placesOf(doc, id, resolve = same) {
  const { root, prompt } = partsOf(doc, id, resolve);
  const places = tree.path(doc, id).map(resolve);
  if (root.tokens.some(({ logprob }) => logprob !== null) || prompt !== root.text) return places;
  if (!linesOfRoots.has(root)) linesOfRoots.set(root, own(root.text));
  return [...linesOfRoots.get(root).map((token) => ({ token, node: root.id, index: -1 })), ...places.filter(({ node }) => node !== root.id)];
}

// placeOf returns where another text leaves a branch: {parent, at, rest}, of which rest is what has to be written there. null: within
// the prompt.
function placeOf(doc, id, text, resolve) {
  const { root, prompt, rest: places } = partsOf(doc, id, resolve);
  if (!text.startsWith(prompt)) return null;
  const wanted = text.slice(prompt.length);
  const kept = tree.unchangedBy(places.map(({ token }) => token), wanted);
  const rest = wanted.slice(tree.plainText(places.slice(0, kept).map(({ token }) => token)).length);
  if (kept) return beforeDraft(doc, { parent: places[kept - 1].node, at: places[kept - 1].index + 1, rest });
  const first = tree.path(doc, id).find(({ node }) => node !== root.id);
  if (!first || doc.nodes[first.node].parent !== root.id) return { parent: root.id, at: root.tokens.length, rest };
  return { parent: root.id, at: doc.nodes[first.node].at, rest };
}

// beforeDraft returns a place that is not within text without token ids: its number there would be another one with them.
function beforeDraft(doc, { parent, at, rest }) {
  const node = doc.nodes[parent];
  if (!isDraft(doc, parent) || at === node.tokens.length) return { parent, at, rest };
  return { parent: node.parent, at: node.at, rest: tree.plainText(node.tokens.slice(0, at)) + rest };
}

// write returns the document in which a branch has another text, with that text selected. Text after a node's end, or in the place
// of a part of it, becomes a branch; a prompt and a person's text that nothing follows change where they are.
export function write(doc, id, text, resolve = same) {
  if (text === textOf(doc, id, resolve)) return tree.select(doc, id);
  const node = doc.nodes[id];
  if (isLeaf(doc, id)) {
    if (node.parent === null) return tree.select(tree.change(doc, id, { text, tokens: [], model: null }), id);
    const before = isDraft(doc, id) ? textBefore(doc, id, resolve) : null;
    if (before !== null && text.startsWith(before)) return tree.select(tree.change(doc, id, { tokens: own(text.slice(before.length)) }), id);
  }
  const place = placeOf(doc, id, text, resolve);
  const [next, written] = place ? branch(doc, place) : tree.ensureRoot(doc, text, null);
  const replaced = written !== id && isDraft(doc, id) && isLeaf(next, id) ? tree.remove(next, id) : next; // its text is in the new one
  return tree.select(replaced, written);
}

// textBefore returns the text of a branch before its last node.
function textBefore(doc, id, resolve) {
  const { prompt, rest } = partsOf(doc, id, resolve);
  return prompt + tree.plainText(rest.filter(({ node }) => node !== id).map(({ token }) => token));
}

function branch(doc, { parent, at, rest }) {
  if (!rest && at === doc.nodes[parent].tokens.length) return [doc, parent];
  const [next, id] = tree.branch(doc, parent, at, own(rest));
  return [tree.change(next, id, { edited: true }), id];
}

// split returns where a branch continues after the beginning of its text: [document, node, number of its tokens that precede]. If the
// text ends within a token, its last word is written as a node of its own.
export function split(doc, id, text, resolve = same) {
  const place = placeOf(doc, id, text, resolve);
  if (place && !place.rest) return [doc, place.parent, place.at];
  const [next, written] = place ? branch(doc, place) : tree.ensureRoot(doc, text, null);
  return [next, written, null];
}

// partings returns the places of a branch where others part from it: {node, at, ids, current}. ids are of the nodes that follow there,
// and of the node itself if it goes on; current is that of them which the branch has, or null.
export function partings(doc, id) {
  const way = [];
  for (let node = doc.nodes[id]; node; node = doc.nodes[node.parent]) way.unshift(node.id);
  const children = new Map(way.map((node) => [node, []]));
  for (const other of doc.order) children.get(doc.nodes[other].parent)?.push(other);
  return way.flatMap((node, depth) => {
    const { length } = doc.nodes[node].tokens;
    const next = way[depth + 1];
    const end = next === undefined ? length : doc.nodes[next].at;
    return [...new Set(children.get(node).map((child) => doc.nodes[child].at))].filter((at) => at <= end).sort((a, b) => a - b).map((at) => {
      const ids = [...(at < length ? [node] : []), ...children.get(node).filter((child) => doc.nodes[child].at === at)];
      return { node, at, ids, current: at < end ? node : next ?? null };
    }).filter(({ ids, current }) => ids.length > 1 || current === null);
  });
}

// common returns how many tokens at the beginning of several lists are the same. A list does not end before it differs.
export function common(all) {
  const shortest = Math.min(...all.map((tokens) => tokens.length));
  const differs = (i) => all.some((tokens) => tokens[i].id !== all[0][i].id || tokens[i].text !== all[0][i].text);
  let count = 0;
  while (all.length > 1 && count < shortest && !differs(count)) count++;
  return count === shortest && count ? count - 1 : count;
}

// merge makes a node and the one whose end it follows one. It returns the same document if there is none, or if one of them has a
// person's text without token ids.
export function merge(doc, id) {
  const { parent, at, role, tokens, finish } = doc.nodes[id];
  const before = doc.nodes[parent];
  if (!before || role || at !== before.tokens.length || !at || [...tokens, ...before.tokens].some((token) => token.id === null)) return doc;
  const isPrompt = before.parent === null;
  const added = isPrompt ? tokens.filter((token) => !tree.isSpecial(token)) : tokens;
  let next = tree.change(doc, parent, { tokens: [...before.tokens, ...added], ...(isPrompt ? { text: before.text + tree.plainText(added) } : { finish }) });
  for (const child of doc.order) if (doc.nodes[child].parent === id) next = tree.change(next, child, { parent, at: at + Math.min(doc.nodes[child].at, added.length) });
  return tree.select(tree.remove(next, id), parent);
}

const isWord = (segment) => /[\p{L}\p{N}\p{P}\p{S}]/u.test(segment);

// reach returns the range that a deletion at a place of a text removes. kind is the inputType of its event.
export function reach(text, at, kind) {
  const forward = kind.endsWith("Forward");
  if (kind.includes("Line")) {
    const end = text.indexOf("\n", at);
    return forward ? [at, end < 0 ? text.length : end] : [text.lastIndexOf("\n", at - 1) + 1, at];
  }
  const byWord = kind.includes("Word");
  const part = forward ? text.slice(at, at + 300) : text.slice(Math.max(0, at - 300), at);
  const segments = [...new Intl.Segmenter("en", { granularity: byWord ? "word" : "grapheme" }).segment(part)].map(({ segment }) => segment);
  if (!forward) segments.reverse();
  let length = 0;
  for (const segment of segments) {
    length += segment.length;
    if (!byWord || isWord(segment)) break;
  }
  return forward ? [at, at + length] : [at - length, at];
}
