// The map of branches: it selects, collapses, bookmarks, names, deletes and compares them.
import * as tree from "./tree.js";
import { $, button, element, isChat, modelOf, onRender, render, select, setDocument, state } from "./state.js";
import { textOf } from "./tokens.js";
import { withText } from "./texts.js";
import { showDifferences } from "./differences.js";

const most = 4; // branches side by side
let deleted = null; // {before, ids} of the last deletion
let drawn = null; // what the map shows
let timer = 0;

export function start() {
  onRender(renderSoon);
  $("bookmark").addEventListener("click", () => changeSelected((node) => ({ bookmarked: !node.bookmarked })));
  $("name-branch").addEventListener("click", () => editName(state.doc.selected));
  $("delete-branch").addEventListener("click", () => remove(state.doc.selected));
  $("bookmarked-only").addEventListener("change", draw);
  $("differences").addEventListener("click", () => showDifferences(...state.sideBySide));
  $("alone").addEventListener("click", () => { state.sideBySide = []; render(); });
  $("tree").addEventListener("keydown", move);
}

// renderSoon draws the map: at once, or four times a second while a stream changes it with every event.
function renderSoon() {
  if (!state.running || !drawn) { draw(); return; }
  timer ||= setTimeout(draw, 250);
}

function draw() {
  clearTimeout(timer);
  timer = 0;
  const { doc, sideBySide } = state;
  const node = doc.nodes[doc.selected];
  $("bookmark").textContent = node.bookmarked ? "Remove bookmark" : "Bookmark";
  $("delete-branch").disabled = tree.isLastRoot(doc, node.id);
  $("differences").hidden = sideBySide.length !== 2;
  $("alone").hidden = sideBySide.length < 2;
  const rows = tree.walk(doc, true).filter(([n]) => Boolean(n.role) === isChat() && (!$("bookmarked-only").checked || n.bookmarked || n.id === doc.selected));
  const several = tree.rootsOf(doc, isChat()).length > 1;
  const prompt = $("prompt").value;
  const key = JSON.stringify([rows.map(([n, depth, children]) => [n.id, depth, children, n.collapsed, n.bookmarked, n.name, n.tokens.length < 60 ? n.tokens.length : 60, n.tokens[0]?.text, n.role && labelOf(n)]), doc.selected, sideBySide, several, several || prompt]);
  if (key === drawn) return;
  drawn = key;
  const focused = document.activeElement?.closest?.("#tree li")?.dataset.id;
  const control = focused && document.activeElement.dataset.control;
  $("tree").replaceChildren(...rows.map(([n, depth, children]) => createRow(n, depth, children, several)));
  if (focused) $("tree").querySelector(`[data-id="${focused}"] [data-control="${control}"]`)?.focus();
  renderPath();
}

// labelOf returns the name of a node in the map.
export function labelOf(node, several = tree.rootsOf(state.doc, false).length > 1) {
  if (node.name) return node.name;
  if (node.role) return labelOfTurn(node);
  const isPrompt = node.parent === null;
  const resolve = withText(modelOf(node.id));
  const text = isPrompt ? (several ? node.text : $("prompt").value) : textOf(node.tokens.slice(0, 60).map((token) => resolve({ token }).token));
  const label = isPrompt ? `Prompt${several && node.model ? ` at ${node.model}` : ""}: ` : "";
  return label + (text.replaceAll(/\s+/g, " ").slice(0, 60) || "(empty)");
}

const roleLabels = { system: "Conversation", user: "User", assistant: "Assistant", tool: "Tool" };

function labelOfTurn({ role, text, calls }) {
  const names = (calls ?? []).map(({ name }) => name).join(", ");
  const shown = text.slice(0, 200).replaceAll(/\s+/g, " ").slice(0, 60) || (names && `calls ${names}`);
  return shown || role !== "system" ? `${roleLabels[role]}: ${shown || "(empty)"}` : roleLabels.system;
}

function createRow(node, depth, children, several) {
  const label = labelOf(node, several);
  const toggle = button(node.collapsed ? "▸" : "▾", () => setDocument(tree.change(state.doc, node.id, { collapsed: !node.collapsed })), {
    className: "quiet toggle", "aria-label": `${node.collapsed ? "Show" : "Hide"} the branches of ${label}`, "aria-expanded": String(!node.collapsed), dataset: { control: "toggle" },
  });
  if (!children) toggle.style.visibility = "hidden";
  const choose = button(`${node.bookmarked ? "★ " : ""}${label}`, () => { state.sideBySide = []; select(node.id); }, { className: "quiet label", dataset: { control: "select" } });
  if (node.id === state.doc.selected) choose.setAttribute("aria-current", "true");
  const row = element("li", { dataset: { id: node.id } }, toggle, choose);
  row.style.paddingInlineStart = `${Math.min(depth, 12) * 0.7}rem`;
  if (node.role) return row;
  const compare = element("input", { type: "checkbox", checked: state.sideBySide.includes(node.id), title: "Show side by side", "aria-label": `Show side by side: ${label}`, dataset: { control: "compare" } });
  compare.disabled = !compare.checked && state.sideBySide.length >= most;
  compare.addEventListener("change", () => {
    state.sideBySide = compare.checked ? [...state.sideBySide, node.id] : state.sideBySide.filter((id) => id !== node.id);
    render();
  });
  row.append(compare);
  return row;
}

// renderPath says where the selected branch is: the way to it from the prompt.
function renderPath() {
  const way = [];
  for (let node = state.doc.nodes[state.doc.selected]; node; node = node.parent === null ? null : state.doc.nodes[node.parent]) way.unshift(node);
  $("way").replaceChildren(...(way.length < 2 ? [] : way.slice(-5).flatMap((node, i) => {
    const step = button(labelOf(node).slice(0, 24), () => select(node.id), { className: "quiet", title: "Go to this branch" });
    return i ? [" › ", step] : [step];
  })));
}

// move selects with the arrow keys as in other trees: up and down between rows, left and right to collapse and expand.
function move(event) {
  const row = event.target.closest("li");
  if (!row || event.target.matches("input[type=text]")) return;
  const control = (li) => li?.querySelector("[data-control=select]");
  if (event.key === "ArrowDown" || event.key === "ArrowUp") {
    event.preventDefault();
    control(event.key === "ArrowDown" ? row.nextElementSibling : row.previousElementSibling)?.focus();
  } else if (event.key === "ArrowLeft" || event.key === "ArrowRight") {
    const collapsed = event.key === "ArrowLeft";
    const node = state.doc.nodes[row.dataset.id];
    if (Boolean(node.collapsed) !== collapsed && row.querySelector(".toggle").style.visibility !== "hidden") setDocument(tree.change(state.doc, node.id, { collapsed }));
  } else if (event.key === "Delete") {
    remove(row.dataset.id);
  }
}

function changeSelected(fields) {
  const { doc } = state;
  setDocument(tree.change(doc, doc.selected, fields(doc.nodes[doc.selected])));
}

// editName shows a field for the name of a branch in its row.
function editName(id) {
  const row = $("tree").querySelector(`[data-id="${id}"]`);
  if (!row || row.querySelector("input[type=text]")) return;
  const input = element("input", { type: "text", value: state.doc.nodes[id].name ?? "", maxLength: 80, "aria-label": "Name of the branch" });
  let open = true;
  const close = (keep) => {
    if (!open) return;
    open = false;
    drawn = null;
    if (keep) setDocument(tree.change(state.doc, id, { name: input.value.trim() }));
    else draw();
    $("tree").querySelector(`[data-id="${id}"] [data-control="select"]`)?.focus();
  };
  input.addEventListener("keydown", (event) => {
    if (event.key === "Enter" || event.key === "Escape") { event.preventDefault(); event.stopPropagation(); close(event.key === "Enter"); }
  });
  input.addEventListener("blur", () => close(true));
  row.querySelector(".label").replaceWith(input);
  input.focus();
}

// remove deletes a branch with those that follow it. The user can undo the last deletion.
function remove(id) {
  const before = state.doc;
  const ids = tree.subtree(before, id);
  const after = tree.remove(before, id);
  if (after === before) return;
  deleted = { before, ids };
  setDocument(after);
  const count = ids.length - 1;
  $("deleted").replaceChildren(`Branch deleted${count ? ` with the ${count === 1 ? "one" : count} that followed it` : ""}. `, button("Undo", undo, { title: "Put the deleted branches back" }));
}

function undo() {
  const { before, ids } = deleted;
  deleted = null;
  $("deleted").replaceChildren("Restored.");
  const restored = tree.restore(state.doc, before, ids);
  setDocument(tree.select(restored, before.selected));
}
