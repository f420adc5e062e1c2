// The strips of siblings: below each place of the text where branches part, they are a line each, sorted as the user wants.
import * as prose from "./prose.js";
import * as tree from "./tree.js";
import { button, element, isRunning, modelOf, select, state } from "./state.js";
import { score } from "./measures.js";
import { textOf } from "./tokens.js";
import { withText } from "./texts.js";

const strips = new Map(); // by the places where branches part
const closed = new Map(); // whether the user has closed or opened the strip of a place
const sorted = { by: null, down: false };
let timer = 0;
let shown = null; // the view that has the strips
let drawnFor = null; // id of the branch that they were drawn for

const columns = [
  ["Text", ({ text }) => text], ["Mean log-p", ({ mean }) => mean ?? -Infinity], ["Tokens", ({ count }) => count],
  ["Finish", ({ finish }) => finish ?? ""], ["Model", ({ model }) => model ?? ""],
];

// placeStrips puts the strips into a view: at once, or four times a second while a stream changes it with every event.
export function placeStrips(view) {
  const places = prose.partings(state.doc, state.doc.selected);
  const keys = new Set(places.map(keyOf));
  for (const [key, el] of strips) if (!keys.has(key)) { el.remove(); strips.delete(key); }
  places.forEach((parting, i) => {
    const key = keyOf(parting);
    if (!strips.has(key)) strips.set(key, createStrip(key));
    const el = strips.get(key);
    el.open = closed.has(key) ? !closed.get(key) : i === places.length - 1;
    place(el, view, parting);
    if (!el.dataset.drawn) draw(el, parting);
  });
  shown = view;
  const isAnother = drawnFor !== state.doc.selected;
  drawnFor = state.doc.selected;
  if (!isRunning() || isAnother) drawAll();
  else timer ||= setTimeout(drawAll, 250);
}

const keyOf = ({ node, at }) => `${node}:${at}`;

// place moves a strip to the first token after the place where branches part.
function place(el, view, { node, at }) {
  const before = new Set();
  for (let id = state.doc.nodes[node].parent; id !== null; id = state.doc.nodes[id].parent) before.add(id);
  const last = view.places.findLastIndex((other) => before.has(other.node) || (other.node === node && other.index < at));
  const next = view.elementAt(last + 1) ?? null;
  const run = next?.parentElement ?? view.elements.at(-1)?.parentElement;
  if (!run) { el.remove(); return; }
  if (el.parentElement !== run || el.nextElementSibling !== next) run.insertBefore(el, next);
}

function createStrip(key) {
  const el = element("details", { className: "strip", contentEditable: "false", "aria-label": "Branches that part here" }, element("summary"), element("ol"));
  el.firstChild.addEventListener("click", () => closed.set(key, el.open));
  return el;
}

function drawAll() {
  clearTimeout(timer);
  timer = 0;
  if (!shown?.box.isConnected) return;
  for (const parting of prose.partings(state.doc, state.doc.selected)) {
    const el = strips.get(keyOf(parting));
    if (el) draw(el, parting);
  }
}

// linesOf returns what the lines of a strip say. first is the first token that is not that of all branches, and rest what follows it.
function linesOf({ node, at, ids, current }) {
  const all = ids.map((id) => (id === node ? state.doc.nodes[id].tokens.slice(at) : state.doc.nodes[id].tokens));
  const shared = prose.common(all);
  return ids.map((id, i) => {
    const tokens = all[i].slice(shared, shared + 40).map((token) => withText(modelOf(id))({ token }).token);
    const { name, bookmarked, finish, made, edited } = state.doc.nodes[id];
    const plain = (some) => textOf(some).replaceAll(/\s+/g, " ");
    return {
      id, isCurrent: id === current, label: [bookmarked ? "★" : "", name ?? ""].join(" ").trim(), skips: shared > 0, first: plain(tokens.slice(0, 1)), rest: plain(tokens.slice(1)),
      text: tree.plainText(tokens), mean: score(all[i], 0).perToken, count: all[i].every((token) => token.id === null) ? null : all[i].length, finish: edited ? "written" : finish, model: made?.model ?? null,
    };
  });
}

function draw(el, parting) {
  const lines = linesOf(parting);
  const compare = (a, b) => (a < b ? -1 : a > b ? 1 : 0);
  const by = columns.find(([name]) => name === sorted.by)?.[1];
  if (by) lines.sort((a, b) => (sorted.down ? compare(by(b), by(a)) : compare(by(a), by(b))));
  const key = JSON.stringify([lines, sorted]);
  if (el.dataset.drawn === key) return;
  el.dataset.drawn = key;
  const at = lines.findIndex(({ isCurrent }) => isCurrent);
  el.firstChild.textContent = at < 0 ? `${lines.length} ${lines.length === 1 ? "branch follows" : "branches follow"}` : `${at + 1} of ${lines.length} branches`;
  const focused = el.contains(document.activeElement) && document.activeElement.dataset.line;
  el.lastChild.replaceChildren(element("li", { className: "head" }, ...columns.map(([name]) => button(name + (sorted.by === name ? (sorted.down ? " ▾" : " ▴") : ""), () => sort(name), {
    className: "quiet", title: `Sort by ${name.toLowerCase()}`, dataset: { line: name },
  }))), ...lines.map(createLine));
  if (focused) el.querySelector(`[data-line="${CSS.escape(focused)}"]`)?.focus();
}

function sort(name) {
  Object.assign(sorted, { down: sorted.by === name ? !sorted.down : name !== "Text", by: name });
  drawAll();
}

function createLine({ id, isCurrent, label, skips, first, rest, mean, count, finish, model }) {
  const cell = (textContent, className = "") => element("span", { textContent, className });
  const line = button("", () => { state.sideBySide = []; select(id); }, { className: "quiet", dataset: { line: id } });
  if (isCurrent) line.setAttribute("aria-current", "true");
  line.append(element("span", { className: "mono" }, ...(label ? [element("span", { className: "tag", textContent: label }), " "] : []), skips ? "…" : "", element("b", { textContent: first || "(empty)" }), rest),
    cell(mean === null ? "–" : mean.toFixed(3), "n"), cell(count?.toLocaleString("en") ?? "–", "n"), cell(finish ?? "–"), cell(model ?? "–"));
  return element("li", {}, line);
}
