// The two modes of the workbench: completions of a prompt, and conversations. What is selected decides which is shown. Parts of
// the page that only one mode has are marked with data-mode.
import * as tree from "./tree.js";
import * as turns from "./turns.js";
import { isAllowed } from "./allowing.js";
import { $, bench, isChat, model, onRender, select, setDocument, showModel, state } from "./state.js";

const left = {}; // ids of what was selected when the user left a mode
const choices = document.querySelectorAll("#mode input");

export function start() {
  onRender(renderMode);
  for (const choice of choices) choice.addEventListener("change", () => { setMode(choice.value === "chat"); showChoice(); });
  $("model").addEventListener("shown", renderChoice);
  $("model").addEventListener("change", fitMode);
  bench.addEventListener("run-ended", fitMode);
}

const modelOption = () => state.options.models.find((option) => option.id === model());

// renderChoice offers the modes that the chosen model has.
function renderChoice() {
  const option = modelOption();
  $("mode").hidden = !option?.chat;
  for (const choice of choices) choice.closest("label").hidden = choice.value === "completion" && !option?.completions;
}

// fitMode leaves a mode that the chosen model does not have.
export function fitMode() {
  const option = modelOption();
  if (option && !option[isChat() ? "chat" : "completions"]) setMode(!isChat());
  renderChoice();
}

const showChoice = () => { for (const choice of choices) choice.checked = (choice.value === "chat") === isChat(); };

// setMode shows what was selected last in a mode, or begins a conversation.
function setMode(chat) {
  if (chat === isChat() || state.running) return;
  const { unsaved } = state;
  const chosen = model();
  left[isChat()] = state.doc.selected;
  state.sideBySide = [];
  const known = state.doc.nodes[left[chat]];
  if (known && Boolean(known.role) === chat) select(known.id);
  else showNewest(chat);
  showModel(chosen);
  state.unsaved = unsaved;
}

function showNewest(chat) {
  const newest = tree.rootsOf(state.doc, chat).at(-1);
  if (newest) select(chat ? turns.leafOf(state.doc, newest) : newest);
  else setDocument(tree.select(...turns.addConversation(state.doc)));
}

// fitModel chooses a model for what is shown: the first of these names that has the mode, then the one that is chosen, then one
// that the key may use.
export function fitModel(...names) {
  const fits = state.options.models.filter((option) => option[isChat() ? "chat" : "completions"]).map(({ id }) => id);
  showModel([...names, model(), ...fits.filter(isAllowed), ...fits].find((id) => fits.includes(id)));
}

let shown = null;
function renderMode() {
  const mode = isChat() ? "chat" : "completion";
  if (mode === shown) return;
  shown = mode;
  for (const el of document.querySelectorAll("[data-mode]")) el.hidden = el.dataset.mode !== mode;
  showChoice();
  for (const id of ["difference", "copied"]) $(id).hidden = true;
  $("copy-status").textContent = "";
  document.dispatchEvent(new Event("mode"));
}
