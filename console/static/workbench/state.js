// The state of the page: the document, what is shown of it, and the texts of tokens. Modules change the document with
// setDocument, and render what they show of it in a function that they pass to onRender.
import * as tree from "./tree.js";
import * as turns from "./turns.js";

export const $ = (id) => document.getElementById(id);
export const bench = $("bench");

export const state = {
  doc: tree.newTree(),
  options: { keys: [], models: [] }, // as the console's API lists them
  running: null, // AbortController of the task that is running
  unsaved: false,
  sideBySide: [], // ids of the branches that the user compares, up to four
  addressed: bench.dataset.prompt || bench.dataset.shared || null, // id of the saved prompt or link in the address, until another prompt is open
};

export const model = () => $("model").value;
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

// setDocument replaces the document, renders it, and stores a draft.
export function setDocument(next) {
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

// keepPrompt adds the text of the prompt field to the document, so that selecting another root does not lose it.
export function keepPrompt() {
  const text = $("prompt").value;
  if (!text || tree.rootsOf(state.doc, false).some((id) => state.doc.nodes[id].text === text)) return;
  [state.doc] = tree.ensureRoot(state.doc, text, null);
}

// select selects a node, and shows its prompt and its model.
export function select(id) {
  keepPrompt();
  state.doc = tree.select(state.doc, id);
  showPrompt(tree.rootOf(state.doc, id));
  setDocument(state.doc);
}

// showPrompt shows the prompt of a root and its model. A conversation has none: its system message is shown with its turns.
export function showPrompt(root) {
  if (!root.role) $("prompt").value = root.text;
  showModel(root.model);
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
