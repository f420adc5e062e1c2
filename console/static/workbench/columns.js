// The branches that the user compares, side by side.
import * as tree from "./tree.js";
import { $, button, element, isChat, model, modelOf, onRender, render, state } from "./state.js";
import { beginOf } from "./tokens.js";
import { withText } from "./texts.js";
import * as blind from "./blind.js";
import { judgedPlace } from "./judged.js";
import * as popover from "./popover.js";

const views = new Map(); // TokenViews by the ids of their columns
let continueFrom;

export function start(callback) {
  continueFrom = callback;
  onRender(renderColumns);
  for (const id of ["measure", "show-spaces"]) $(id).addEventListener("change", render);
}

function renderColumns() {
  const nodes = isChat() || state.sideBySide.length < 2 ? [] : state.sideBySide;
  const box = $("columns");
  const ids = nodes.map((id) => `column-${id}`);
  for (const el of [...box.children]) if (!ids.includes(el.id)) { views.delete(el.id); el.remove(); }
  nodes.forEach((id, i) => {
    const el = $(`column-${id}`) ?? createColumn(id);
    if (box.children[i] !== el) box.insertBefore(el, box.children[i] ?? null);
    renderColumn(el, id);
  });
  box.hidden = nodes.length === 0;
}

function renderColumn(el, id) {
  const { doc } = state;
  const node = doc.nodes[id];
  const places = tree.path(doc, id).map(judgedPlace).map(withText(modelOf(id)));
  const begin = node.parent === null || el.dataset.whole ? 0 : beginOf(places, places.findIndex((place) => doc.nodes[place.node].parent !== null));
  const hidden = el.querySelector(".whole");
  hidden.hidden = begin <= 0;
  hidden.textContent = `Show all of the prompt (${begin.toLocaleString("en")} more tokens)`;
  views.get(el.id).render(places, { measure: $("measure").value, spaces: $("show-spaces").checked, begin: Math.max(begin, 0) });
  const label = node.parent === null ? "prompt" : node.finish;
  const letter = blind.letterOf(id);
  el.querySelector("small").textContent = (letter ? [`Text ${letter}`, label] : [node.bookmarked && "★", node.name, modelOf(id), label]).filter(Boolean).join(" · ");
  el.querySelector(".choose").hidden = !letter;
  el.querySelector(".continue").hidden = Boolean(letter) || node.parent === null;
  el.classList.toggle("chosen", !letter && id === doc.selected);
}

function createColumn(id) {
  const isPrompt = state.doc.nodes[id].parent === null;
  const continueButton = button("Continue", () => continueFrom(id), { className: "quiet continue", title: "Generate more text after the end of this one" });
  const text = element("div", { id: `tokens-${id}`, className: "tokens mono", "aria-label": "Tokens: arrow keys to move, Enter to pin" });
  const whole = button("", () => { el.dataset.whole = "1"; render(); }, { className: "quiet whole", hidden: true });
  const el = element("section", { id: `column-${id}`, className: "column", "aria-label": isPrompt ? "Tokens of the prompt" : "Continuation" },
    element("div", { className: "line" }, element("small"), continueButton, blind.choice(id)), whole, text);
  $("columns").append(el);
  views.set(el.id, popover.viewOf(text));
  return el;
}

// follow keeps the end of the growing text, or of the last turn, in the window, unless the user has scrolled since the request began.
let following = false;
for (const type of ["wheel", "touchmove"]) addEventListener(type, () => { following = false; }, { passive: true });
addEventListener("keydown", (event) => { if (["PageUp", "PageDown", "Home", "End", "ArrowUp", "ArrowDown", " "].includes(event.key)) following = false; });
export function startFollowing() {
  following = true;
  $("prompt").scrollTop = $("prompt").scrollHeight;
}
export function follow() {
  if (following) (isChat() ? $("turns").lastElementChild : $("prompt"))?.scrollIntoView({ block: "nearest" });
}

// shownModel returns the model of what is shown.
export const shownModel = () => (isChat() || state.doc.nodes[state.doc.selected].parent === null ? model() : modelOf(state.doc.selected));
