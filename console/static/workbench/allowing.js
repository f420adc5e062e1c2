// What the chosen key allows: which models can be used with it, and so which buttons can start a request.
import { $, isChat, model, state } from "./state.js";

// buttons start a request. data-run has the ids of the selects whose models the request uses.
const buttons = document.querySelectorAll("[data-run]");

export function start() {
  for (const el of document.querySelectorAll("[data-models], #compare")) el.addEventListener("change", renderRun);
  $("model").addEventListener("shown", renderRun);
  document.addEventListener("mode", renderRun);
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

const selectsOf = (el) => el.dataset.run.split(" ").filter((id) => id && (id !== "second-model" || $("compare").checked));

// renderRun enables the buttons of the requests that can be sent, and says beside them why others cannot.
export function renderRun() {
  for (const el of buttons) el.disabled = Boolean(state.running) || !chosenKey() || refusal(selectsOf(el)) !== "";
  $("refusal").textContent = refusal(selectsOf(isChat() ? $("send") : $("generate")));
  $("score-refusal").textContent = refusal(selectsOf($("score-texts")));
}

// mayRun reports whether a request can be sent with the chosen key and model. If the key may not use the model, it brings what
// says so into view.
export function mayRun() {
  if (state.running || !chosenKey()) return false;
  if (isAllowed(model())) return true;
  $("refusal").scrollIntoView({ block: "nearest" });
  return false;
}
