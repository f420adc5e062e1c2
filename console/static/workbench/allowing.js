// What the chosen key allows: which models can be used with it, and so which buttons can start a request.
import { $, isChat, isGrowing, model, onRender, state } from "./state.js";
import { compared } from "./comparing.js";

// buttons start a request. data-run has the ids of the selects whose models the request uses; "others" are those of a comparison.
const buttons = document.querySelectorAll("[data-run]");

export function start() {
  for (const el of document.querySelectorAll("[data-models], #compare")) el.addEventListener("change", renderRun);
  $("model").addEventListener("shown", renderRun);
  document.addEventListener("mode", renderRun);
  let shown = null;
  onRender(() => {
    if (shown === state.doc.selected) return;
    shown = state.doc.selected;
    renderRun();
  });
}

const chosenKey = () => state.options.keys.find((key) => key.id === $("key").value);

// isAllowed reports whether the chosen key may use a model.
export function isAllowed(id) {
  const allowed = chosenKey()?.models;
  return !allowed || allowed.includes(id);
}

// refusal returns a sentence if the chosen key may not use the model of a select in the list, and else an empty string.
function refusal(selects) {
  const refused = selects.map((id) => $(id).value).find((id) => !isAllowed(id));
  if (refused === undefined) return "";
  return refused ? `The key “${chosenKey().name}” may not use ${refused}: choose another model or key.` : `The key “${chosenKey().name}” may use none of these models: choose another key.`;
}

const selectsOf = (el) => el.dataset.run.split(" ").flatMap((id) => (id === "others" ? compared().map(({ name }) => `${name}-model`) : id || []));

// renderRun enables the buttons of the requests that can be sent, and says beside them why others cannot.
export function renderRun() {
  for (const el of buttons) el.disabled = Boolean(state.running) || isGrowing(state.doc.selected) || !chosenKey() || refusal(selectsOf(el)) !== "";
  $("refusal").textContent = refusal(selectsOf(isChat() ? $("send") : $("generate")));
  for (const id of ["score-texts", "rank-answers"]) $(id).nextElementSibling.textContent = refusal(selectsOf($(id)));
}

// mayRun reports whether a request can be sent with the chosen key and model. If the key may not use the model, it brings what
// says so into view.
export function mayRun() {
  if (state.running || isGrowing(state.doc.selected) || !chosenKey()) return false;
  if (isAllowed(model())) return true;
  $("refusal").scrollIntoView({ block: "nearest" });
  return false;
}
