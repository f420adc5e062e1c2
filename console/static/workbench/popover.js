// The details and the alternatives of a token, at the token, or in a sheet at the bottom of a narrow window. It follows the
// pointer and the arrow keys until the user pins it: then alternatives can be chosen, with the arrow keys too.
import { cumulative, entropy, percent, probability, rank, surprisal } from "./measures.js";
import { $, button, element, modelOf, onRender, render, state } from "./state.js";
import { fact } from "./judged.js";
import { TokenView, visibleText } from "./tokens.js";
import { fetchTexts, textsOf } from "./texts.js";

const { autoUpdate, computePosition, flip, offset, shift, size } = globalThis.FloatingUIDOM;
const narrow = matchMedia("(max-width: 46rem)");

let shown = null; // {view, place} of the token whose details are shown
let pinned = false;
let fetchTimer = 0;
let stopPlacing = () => {};
let actions; // {branchFrom, branchWithText}

export function start(callbacks) {
  actions = callbacks;
  onRender(() => { if (shown && !(shown.view.box.isConnected && (isApart(shown.place) || state.doc.nodes[shown.place.node]))) close(); });
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") close(); });
  document.addEventListener("pointerdown", (event) => {
    if (pinned && !$("token").contains(event.target) && !event.target.closest?.(".token")) close();
  });
  $("token").addEventListener("keydown", moveAmongAlternatives);
}

// A place that is not in the document has its own model, and no branches.
const isApart = (place) => Boolean(place.model);
const modelAt = (place) => place.model ?? modelOf(place.node);

export const isPinned = () => pinned && Boolean(shown?.view.box.isConnected);

export function inspect(view) {
  show(view, false);
}

// pin keeps the details of the current token of a view open.
export function pin(view) {
  show(view, true);
}

// togglePin pins the current token of a view, or closes the details if it is pinned.
export function togglePin(view) {
  if (isPinned() && shown.place.node === view.place.node && shown.place.index === view.place.index) { close(); return; }
  pin(view);
  ($("token").querySelector(".alternatives button:enabled") ?? $("token").querySelector("button"))?.focus();
}

// leave closes the details of a token that is not pinned.
export function leave() {
  if (!pinned) close();
}

// viewOf returns a view of tokens in an element that shows their details.
export const viewOf = (box) => new TokenView(box, { onMove: inspect, onSelect: togglePin, onLeave: leave, followsPointer: () => !isPinned() });

export function close() {
  if (!shown) return;
  const { view } = shown;
  const focused = $("token").contains(document.activeElement);
  pinned = false;
  shown = null;
  stopPlacing();
  $("token").hidden = true;
  document.body.classList.remove("with-sheet");
  if (focused && view.box.isConnected) view.box.focus();
}

function show(view, pin) {
  shown = { view, place: view.place };
  pinned = pin;
  $("token").hidden = false;
  renderShown();
  placeAt(view, view.current);
  if (narrow.matches && pin) raise(view);
  clearTimeout(fetchTimer);
  const { place } = shown;
  fetchTimer = setTimeout(async () => {
    if (!await fetchTexts(modelAt(place), [place.token.id, ...(place.token.top ?? []).map((t) => t.id)])) return;
    renderShown();
    render();
  }, 60);
}

// raise scrolls the token of a sheet into the upper third of the window, where the sheet does not cover it.
function raise(view) {
  document.body.classList.add("with-sheet");
  view.elementAt(view.current)?.scrollIntoView({ block: "start" });
}

// placeAt keeps the details at a token.
function placeAt(view, index) {
  stopPlacing();
  const box = $("token");
  const reference = { getBoundingClientRect: () => (view.elementAt(index) ?? view.box).getBoundingClientRect(), contextElement: view.box };
  stopPlacing = autoUpdate(reference, box, async () => {
    box.classList.toggle("sheet", narrow.matches);
    if (narrow.matches) { box.removeAttribute("style"); return; }
    const limit = size({ padding: 8, apply: ({ availableHeight }) => { box.style.maxHeight = `${Math.max(160, availableHeight)}px`; } });
    const { x, y } = await computePosition(reference, box, { strategy: "fixed", placement: "bottom-start", middleware: [offset(6), flip({ padding: 8 }), shift({ padding: 8 }), limit] });
    Object.assign(box.style, { left: `${x}px`, top: `${y}px` });
  });
}

const format = (value, digits, unit) => (value === null ? "unknown" : `${value.toFixed(digits)}${unit}`);

function renderShown() {
  if (!shown) return;
  const box = $("token");
  const focusedId = box.contains(document.activeElement) ? document.activeElement.dataset.id ?? "" : null;
  const own = box.querySelector("input")?.value ?? "";
  const { token } = shown.place;
  const texts = textsOf(modelAt(shown.place));
  box.classList.toggle("pinned", pinned);
  box.replaceChildren(heading(token, texts), facts(token), fact(token));
  if (token.top?.length) box.append(alternatives(token, texts));
  if (!pinned) return;
  if (!isApart(shown.place)) box.append(ownText(own));
  if (focusedId) box.querySelector(`[data-id="${focusedId}"]:enabled`)?.focus();
}

function heading(token, texts) {
  const text = token.joins ? visibleText(token) : visibleText({ ...token, text: texts(token.id) ?? token.text });
  const line = element("div", { className: "line" }, element("h3", {}, "Token ", element("code", { textContent: text })));
  if (token.id === null) line.firstChild.firstChild.textContent = "Word ";
  if (pinned && narrow.matches) line.append(element("span", { className: "steps" }, sideways("‹", "Previous token", -1), sideways("›", "Next token", 1)));
  if (pinned) line.append(button("Close", close, { className: "quiet", title: "Esc closes it too", dataset: { id: "close" } }));
  return line;
}

const sideways = (text, label, step) => button(text, () => go(step), { className: "quiet", "aria-label": label, title: label, dataset: { id: label } });

function facts(token) {
  if (token.id === null) return element("p", { className: "soft", textContent: "no probability: you wrote this word, or no probabilities were asked for" });
  return element("p", {
    className: "soft",
    textContent: typeof token.logprob === "number"
      ? `id ${token.id} · probability ${percent(token.logprob)} · ${surprisal(token.logprob).toFixed(2)} bits · rank ${rank(token) ?? (token.top?.length ? `below ${token.top.length}` : "unknown")} · entropy ${entropy(token) === null ? "unknown" : `≥ ${entropy(token).toFixed(2)} bits`}`
      : `id ${token.id} · no probability yet: “Score prompt” finds those of a prompt`,
  });
}

// alternatives returns the list of the likeliest tokens with their ranks, ids, probabilities, and the sum of these so far.
function alternatives(token, texts) {
  const list = element("ul", { className: "alternatives" });
  list.append(element("li", { className: "head", "aria-hidden": "true" }, ...["rank", "token", "id", "", "probability", "total"].map((name) => element("span", { textContent: name }))));
  const sums = cumulative(token.top);
  token.top.forEach((alternative, i) => {
    const item = button("", () => actions.branchFrom(shown.place, alternative), { dataset: { id: alternative.id }, disabled: isApart(shown.place) || alternative.id === token.id });
    const { logprob } = alternative;
    item.title = `${surprisal(logprob).toFixed(2)} bits`;
    item.append(
      element("span", { className: "n" }, element("span", { className: "visually-hidden", textContent: alternative.id === token.id ? "Current: rank " : isApart(shown.place) ? "Rank " : "Continue with rank " }), String(alternative.rank ?? i + 1)),
      element("code", { textContent: visibleText({ id: alternative.id, text: texts(alternative.id) }, $("show-spaces").checked) }),
      element("small", { className: "n", textContent: alternative.id }),
      element("meter", { max: 1, value: probability(logprob), "aria-hidden": "true" }),
      element("span", { className: "n", textContent: percent(logprob) }),
      element("span", { className: "n soft", textContent: percent(Math.log(sums[i])) }));
    list.append(element("li", {}, item));
  });
  return list;
}

function ownText(value) {
  const input = element("input", { value, "aria-label": "Your own text", placeholder: "Your own text", dataset: { id: "own" }, spellcheck: false });
  const form = element("form", { className: "line own" }, input, element("button", { textContent: "Branch here", title: "Put this text in the place of the token and generate what follows. A space at its beginning counts" }));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (input.value) actions.branchWithText(shown.place, input.value);
  });
  return form;
}

// go shows the details of a token beside the one that is shown.
function go(by) {
  const { view } = shown;
  view.current = Math.max(view.begin, Math.min(view.places.length - 1, view.current + by));
  view.markCurrent();
  show(view, true);
}

function moveAmongAlternatives(event) {
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (step) {
    const all = [...$("token").querySelectorAll("button:enabled, input")];
    event.preventDefault();
    all[(all.indexOf(document.activeElement) + step + all.length) % all.length]?.focus();
    return;
  }
  const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (!by || event.target.matches("input") || !shown) return;
  event.preventDefault();
  go(by);
  ($("token").querySelector(".alternatives button:enabled") ?? $("token").querySelector("button"))?.focus();
}
