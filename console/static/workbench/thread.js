// The conversation that is shown: its turns with their versions, their tokens, and what can be done with each.
import * as popover from "./popover.js";
import * as turns from "./turns.js";
import { $, button, element, isChat, modelOf, onRender, select, state } from "./state.js";
import { answer, extend, regenerate } from "./conversing.js";
import { editTurn } from "./turnediting.js";
import { renderCalls } from "./calls.js";
import { withText } from "./texts.js";

const views = new Map(); // TokenViews by the ids of their turns
const roleNames = { user: "User", assistant: "Assistant", tool: "Tool" };

export function start() {
  onRender(renderThread);
  $("later-turns").addEventListener("click", () => select(turns.leafOf(state.doc, state.doc.selected)));
}

function renderThread() {
  if (!isChat()) return;
  const nodes = turns.thread(state.doc, state.doc.selected).slice(1);
  const box = $("turns");
  const ids = nodes.map(({ id }) => `turn-${id}`);
  for (const el of [...box.children]) if (!ids.includes(el.id)) { views.delete(el.id); el.remove(); }
  nodes.forEach((node, i) => {
    const el = $(`turn-${node.id}`) ?? createTurn(node);
    if (box.children[i] !== el) box.insertBefore(el, box.children[i] ?? null);
    renderTurn(el, node);
  });
  $("later-turns").hidden = turns.isLeaf(state.doc, state.doc.selected) || nodes.length === 0;
  $("view").hidden = !nodes.some((node) => node.tokens.length);
}

function createTurn({ id, role }) {
  const isAssistant = role === "assistant";
  const control = (text, title, onClick, name) => button(text, onClick, { className: "quiet", title, dataset: { control: name } });
  const el = element("li", { id: `turn-${id}`, className: `turn ${role}` });
  const actions = [
    control("Edit", "Change the text. The changed turn becomes a version; this one stays", () => editTurn(id, el), "edit"),
    ...(isAssistant ? [control("Regenerate", "Generate another version of this turn", () => regenerate(id), "regenerate"),
      control("Continue", "Generate more text after the end of this one", () => extend(id), "continue")]
      : [control("Answer", "Generate the turn that follows", () => answer(id), "answer")]),
  ];
  el.append(element("div", { className: "line" }, element("h3", { textContent: roleNames[role] }), element("small", { className: "soft" }),
    createVersions(id), element("span", { className: "turn-actions" }, ...actions)));
  if (!isAssistant) {
    el.append(element("div", { className: "turn-text content" }));
    return el;
  }
  const text = element("div", { id: `tokens-${id}`, className: "tokens content", "aria-label": "Answer, by tokens: arrow keys to move, Enter to pin" });
  el.append(element("details", { className: "reasoning", hidden: true }, element("summary"), element("div", { className: "turn-text soft" })),
    text, element("div", { className: "calls" }));
  views.set(el.id, popover.viewOf(text));
  return el;
}

// createVersions returns the arrows between the versions of a turn.
function createVersions(id) {
  const go = (step, name) => {
    const all = turns.versions(state.doc, id);
    const next = all[all.indexOf(id) + step];
    select(turns.leafOf(state.doc, next));
    const controls = [...$(`turn-${next}`).querySelectorAll(".versions button")];
    (controls.find((el) => el.dataset.control === name && !el.disabled) ?? controls.find((el) => !el.disabled))?.focus();
  };
  const arrow = (text, label, step, name) => button(text, () => go(step, name), { className: "quiet", "aria-label": label, title: label, dataset: { control: name } });
  return element("span", { className: "versions", role: "group", "aria-label": "Versions of this turn", hidden: true },
    arrow("‹", "Previous version", -1, "previous"), element("span", { className: "figures" }), arrow("›", "Next version", 1, "next"));
}

function renderTurn(el, node) {
  renderHead(el, node);
  if (node.role !== "assistant") {
    setText(el.querySelector(".content"), node.text);
    return;
  }
  const reasoning = el.querySelector(".reasoning");
  reasoning.hidden = !node.reasoning;
  setText(reasoning.querySelector("summary"), `Reasoning (${(node.reasoning ?? "").length.toLocaleString("en")} characters)`);
  setText(reasoning.querySelector("div"), node.reasoning ?? "");
  const resolve = withText(modelOf(node.id));
  const places = node.tokens.map((token, index) => resolve({ token, node: node.id, index }));
  el.querySelector(".tokens").hidden = places.length === 0;
  views.get(el.id).render(places, { measure: $("measure").value, spaces: $("show-spaces").checked });
  renderCalls(el.querySelector(".calls"), node);
}

function renderHead(el, node) {
  const all = turns.versions(state.doc, node.id);
  const at = all.indexOf(node.id);
  const running = Boolean(state.running);
  const generating = running && node.role === "assistant" && !node.finish && node.id === state.doc.selected;
  const details = node.role === "tool" ? [nameOfCall(node)] : [node.name, node.made?.model, node.edited && "edited", generating ? "generating" : node.finish];
  setText(el.querySelector("small"), details.filter(Boolean).join(" · "));
  el.querySelector(".versions").hidden = all.length < 2;
  setText(el.querySelector(".versions .figures"), `${at + 1} of ${all.length}`);
  const enable = (name, enabled) => { const control = el.querySelector(`[data-control=${name}]`); if (control) control.disabled = !enabled; };
  enable("previous", at > 0);
  enable("next", at < all.length - 1);
  for (const name of ["edit", "regenerate", "answer", "continue"]) enable(name, !running);
  const answered = el.querySelector("[data-control=answer]");
  if (answered) answered.hidden = !turns.isLeaf(state.doc, node.id);
  const continued = el.querySelector("[data-control=continue]");
  if (continued) continued.hidden = !node.text || Boolean(node.calls?.length);
}

// nameOfCall returns the name of the function whose result a turn is.
function nameOfCall({ parent, call }) {
  for (const { calls } of turns.thread(state.doc, parent).reverse()) {
    const found = calls?.find(({ id }) => id === call);
    if (found) return found.name;
  }
  return call;
}

function setText(el, text) {
  if (el.textContent !== text) el.textContent = text;
}
