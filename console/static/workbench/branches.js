// The map of branches, a tree that the keyboard walks: it selects, collapses, marks, names, prunes, merges, hoists and finds them.
import * as prose from "./prose.js";
import * as tree from "./tree.js";
import { $, button, element, isChat, isRunning, onRender, render, select, setDocument, state, undo } from "./state.js";
import { beginsAt, labelOf } from "./labels.js";
import { showDifferences } from "./differences.js";

const most = 4; // branches side by side
let hoisted = null; // id of the node that is shown as the root
let drawn = null; // what the map shows
let timer = 0;

export function start() {
  onRender(renderSoon);
  $("bookmark").addEventListener("click", mark);
  $("name-branch").addEventListener("click", () => editName(state.doc.selected));
  $("delete-branch").addEventListener("click", () => prune(state.doc.selected));
  $("merge-branch").addEventListener("click", () => merge(state.doc.selected));
  $("bookmarked-only").addEventListener("change", draw);
  $("tree-search").addEventListener("input", draw);
  $("tree-search").addEventListener("keydown", leaveSearch);
  $("differences").addEventListener("click", () => showDifferences(...state.sideBySide));
  $("alone").addEventListener("click", () => { state.sideBySide = []; render(); });
  $("tree").addEventListener("keydown", useKey);
  $("tree").addEventListener("click", ({ target }) => {
    const id = target.closest("li")?.dataset.id;
    if (!id || target.matches("input")) return;
    if (target.closest(".toggle")) collapse(id, !state.doc.nodes[id].collapsed);
    else choose(id);
  });
}

// renderSoon draws the map: at once, or four times a second while a stream changes it with every event.
function renderSoon() {
  if (!isRunning() || !drawn) { draw(); return; }
  timer ||= setTimeout(draw, 250);
}

// rowsOf returns what the map shows of the document: [node, depth, children].
function rowsOf(doc) {
  if (!doc.nodes[hoisted]) hoisted = null;
  const below = hoisted && new Set(tree.subtree(doc, hoisted));
  const words = $("tree-search").value.toLowerCase();
  const isWanted = (node) => [node.name, node.made?.model ?? node.model, node.text, tree.plainText(node.tokens)].some((text) => text?.toLowerCase().includes(words));
  return tree.walk(doc, !words).filter(([node]) => Boolean(node.role) === isChat() && (!below || below.has(node.id)) && (!words || isWanted(node))
    && (!$("bookmarked-only").checked || node.bookmarked || node.id === doc.selected));
}

function draw() {
  clearTimeout(timer);
  timer = 0;
  const { doc, sideBySide } = state;
  const node = doc.nodes[doc.selected];
  $("bookmark").textContent = node.bookmarked ? "Remove bookmark" : "Bookmark";
  $("delete-branch").disabled = tree.isLastRoot(doc, node.id);
  $("merge-branch").disabled = prose.merge(doc, node.id) === doc;
  $("differences").hidden = sideBySide.length !== 2;
  $("alone").hidden = sideBySide.length < 2;
  const rows = rowsOf(doc);
  const skipped = beginsAt(doc);
  const labels = rows.map(([n]) => `${n.bookmarked ? "★ " : ""}${labelOf(n, skipped.get(n.id))}`);
  const key = JSON.stringify([rows.map(([n, depth, children], i) => [n.id, depth, children, n.collapsed, labels[i]]), doc.selected, sideBySide, hoisted]);
  if (key === drawn) return;
  drawn = key;
  const hadFocus = $("tree").contains(document.activeElement);
  const isShown = rows.some(([n]) => n.id === doc.selected);
  $("tree").replaceChildren(...rows.map(([n, depth, children], i) => createRow(n, depth - rows[0][1], children, labels[i], n.id === (isShown ? doc.selected : rows[0][0].id))));
  if (hadFocus) $("tree").querySelector("[tabindex='0']")?.focus();
  $("no-branches").hidden = rows.length > 0;
}

function createRow(node, depth, children, label, isTabStop) {
  const row = element("li", { role: "treeitem", dataset: { id: node.id }, tabIndex: isTabStop ? 0 : -1, "aria-level": depth + 1, "aria-selected": String(node.id === state.doc.selected) },
    element("span", { className: "toggle", textContent: !children ? "" : node.collapsed ? "▸" : "▾", "aria-hidden": "true" }), element("span", { className: "label", textContent: label, title: label }));
  if (children) row.setAttribute("aria-expanded", String(!node.collapsed));
  row.style.paddingInlineStart = `${Math.min(depth, 12) * 0.7}rem`;
  if (node.role) return row;
  const compare = element("input", { type: "checkbox", checked: state.sideBySide.includes(node.id), tabIndex: -1, title: "Show side by side", "aria-label": `Show side by side: ${label}` });
  compare.disabled = !compare.checked && state.sideBySide.length >= most;
  compare.addEventListener("change", () => {
    state.sideBySide = compare.checked ? [...state.sideBySide, node.id] : state.sideBySide.filter((id) => id !== node.id);
    render();
  });
  row.append(compare);
  return row;
}

const rowOf = (id) => $("tree").querySelector(`[data-id="${id}"]`);

// choose selects a branch, whose row gets the focus.
function choose(id) {
  if (!state.doc.nodes[id]) return;
  state.sideBySide = [];
  select(id);
  draw();
  rowOf(id)?.focus();
}

function collapse(id, collapsed) {
  setDocument(tree.change(state.doc, id, { collapsed }));
}

const parentOf = (id) => (id === hoisted ? null : state.doc.nodes[id].parent);
const childrenOf = (id) => state.doc.order.filter((other) => state.doc.nodes[other].parent === id && Boolean(state.doc.nodes[other].role) === isChat());

// sibling returns the id of a node that follows the same one, or null.
function sibling(id, step) {
  if (id === hoisted) return null;
  const all = childrenOf(state.doc.nodes[id].parent);
  return all[all.indexOf(id) + step] ?? null;
}

// close collapses a branch, or goes to its parent; open shows what follows it, or goes there.
const close = (id) => (childrenOf(id).length && !state.doc.nodes[id].collapsed ? collapse(id, true) : choose(parentOf(id)));
const open = (id) => (state.doc.nodes[id].collapsed ? collapse(id, false) : choose(childrenOf(id)[0]));

const commands = {
  ArrowDown: (id, row) => choose(row.nextElementSibling?.dataset.id),
  ArrowUp: (id, row) => choose(row.previousElementSibling?.dataset.id),
  Home: () => choose($("tree").firstElementChild.dataset.id),
  End: () => choose($("tree").lastElementChild.dataset.id),
  ArrowLeft: close,
  ArrowRight: open,
  h: (id) => choose(parentOf(id)),
  l: (id) => { if (state.doc.nodes[id].collapsed) collapse(id, false); choose(childrenOf(id)[0]); },
  j: (id) => choose(sibling(id, 1)),
  k: (id) => choose(sibling(id, -1)),
  Enter: (id) => { choose(id); $(isChat() ? "send" : "generate").click(); }, // unless it is disabled
  " ": (id, row) => row.querySelector("input")?.click(),
  x: (id) => prune(id),
  Delete: (id) => prune(id),
  m: () => mark(),
  n: (id) => editName(id),
  z: (id) => { hoisted = hoisted === null ? id : null; draw(); },
  e: (id) => merge(id),
  "/": () => $("tree-search").focus(),
};

function useKey(event) {
  const row = event.target.closest("li");
  if (!row || event.target.matches("input") || event.altKey) return;
  if (event.ctrlKey || event.metaKey) {
    if (!["z", "y"].includes(event.key.toLowerCase())) return;
    event.preventDefault();
    undo(event.key.toLowerCase() === "z" && !event.shiftKey);
    return;
  }
  if (!(event.key in commands)) return;
  event.preventDefault();
  event.stopPropagation();
  commands[event.key](row.dataset.id, row);
}

// leaveSearch goes from the search to the first branch that it has found.
function leaveSearch(event) {
  if (event.key === "Enter" || event.key === "ArrowDown") choose($("tree").firstElementChild?.dataset.id);
  else if (event.key === "Escape") { $("tree-search").value = ""; choose(state.doc.selected); } else return;
  event.preventDefault();
}

function mark() {
  const { doc } = state;
  setDocument(tree.change(doc, doc.selected, { bookmarked: !doc.nodes[doc.selected].bookmarked }));
}

// merge makes a branch and what it follows one.
function merge(id) {
  setDocument(prose.merge(state.doc, id));
}

// editName shows a field for the name of a branch in its row.
function editName(id) {
  const row = rowOf(id);
  if (!row || row.querySelector("input[type=text]")) return;
  const input = element("input", { type: "text", value: state.doc.nodes[id].name ?? "", maxLength: 80, "aria-label": "Name of the branch" });
  let isOpen = true;
  const leave = (keep) => {
    if (!isOpen) return;
    isOpen = false;
    drawn = null;
    if (keep) setDocument(tree.change(state.doc, id, { name: input.value.trim() }));
    else draw();
    rowOf(id)?.focus();
  };
  input.addEventListener("keydown", (event) => {
    if (event.key === "Enter" || event.key === "Escape") { event.preventDefault(); event.stopPropagation(); leave(event.key === "Enter"); }
  });
  input.addEventListener("blur", () => leave(true));
  row.querySelector(".label").replaceWith(input);
  input.focus();
}

// prune deletes a branch with those that follow it, which can be undone.
function prune(id) {
  const count = tree.subtree(state.doc, id).length - 1;
  const after = tree.remove(state.doc, id);
  if (after === state.doc) return;
  setDocument(after);
  const undoButton = button("Undo", () => { if (undo()) $("deleted").replaceChildren("Restored."); }, { title: "Put the deleted branches back. Ctrl+Z" });
  $("deleted").replaceChildren(`Branch deleted${count ? ` with the ${count === 1 ? "one" : count} that followed it` : ""}. `, undoButton);
}
