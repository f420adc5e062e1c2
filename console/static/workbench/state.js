// The state of the page: the document, what is shown of it, and the texts of tokens. Modules change the document with
// setDocument, and render what they show of it in a function that they pass to onRender.
import * as history from "./history.js";
import * as tree from "./tree.js";
import * as turns from "./turns.js";

export const $ = (id) => document.getElementById(id);
export const bench = $("bench");

export const state = {
  doc: tree.newTree(),
  options: { keys: [], models: [] }, // as the console's API lists them
  running: null, // AbortSignal of the task that runs alone
  runs: [], // completions that run or wait: {key, nodes, isActive}
  unsaved: false,
  sideBySide: [], // ids of the branches that the user compares, up to four
  addressed: bench.dataset.prompt || bench.dataset.shared || null, // id of the saved prompt or link in the address, until another prompt is open
};

export const model = () => $("model").value;
export const isRunning = () => Boolean(state.running) || state.runs.length > 0;
// isGrowing reports whether a completion adds to a node.
export const isGrowing = (id) => state.runs.some((run) => run.nodes.has(id));
// modelOf returns the model whose token ids a node has.
export function modelOf(id) {
  const node = state.doc.nodes[id];
  return node.role ? node.made?.model ?? model() : tree.rootOf(state.doc, id).model;
}

// isChat reports whether a conversation is shown, and not a prompt with its continuations.
export const isChat = () => turns.isChat(state.doc);

const renderers = [];
const changeListeners = [];
export const onRender = (render) => renderers.push(render);
// onChange registers a function that is called after every change of the document.
export const onChange = (listener) => changeListeners.push(listener);

export function render() {
  state.sideBySide = state.sideBySide.filter((id) => state.doc.nodes[id]);
  for (const show of renderers) show();
}

// setDocument replaces the document, renders it, and stores a draft. The user can undo it: options are those of history's record.
export function setDocument(next, options) {
  history.record(state.doc, next, options);
  state.doc = next;
  documentChanged();
  render();
}

// documentChanged marks the document as changed without rendering it, as for each event of a stream.
export function documentChanged() {
  state.unsaved = true;
  for (const listener of changeListeners) listener();
}

// scheduleRender renders once before the next frame, however often it is called.
let frame = 0;
export function scheduleRender(after = () => {}) {
  if (!frame) frame = requestAnimationFrame(() => { frame = 0; render(); after(); });
}

// showDocument shows another document, whose changes begin with it.
export function showDocument(next) {
  state.doc = next;
  history.clear();
  setDocument(next);
}

// undo undoes the last change of the document, or makes the one again that was undone last. It reports whether there was one.
export function undo(back = true) {
  const next = history.step(state.doc, back);
  if (!next) return false;
  state.doc = next;
  showModel(rootOfSelected().model);
  documentChanged();
  render();
  return true;
}

// rootOfSelected returns the root of the branch that is selected.
export const rootOfSelected = () => tree.rootOf(state.doc, state.doc.selected);

// select selects a node, and shows its model.
export function select(id) {
  setDocument(tree.select(state.doc, id));
  showModel(rootOfSelected().model);
}

// showModel chooses a model, if there is one of that name.
export function showModel(name) {
  if ([...$("model").options].some((o) => o.value === name)) $("model").value = name;
  $("model").dispatchEvent(new Event("shown"));
}

// element returns a new element with attributes, properties and children.
export function element(name, { dataset, ...properties } = {}, ...children) {
  const el = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key.includes("-") || key === "role") el.setAttribute(key, value);
    else el[key] = value;
  }
  Object.assign(el.dataset, dataset);
  el.append(...children);
  return el;
}

export const button = (textContent, onClick, properties = {}) => {
  const el = element("button", { type: "button", textContent, ...properties });
  el.addEventListener("click", onClick);
  return el;
};
