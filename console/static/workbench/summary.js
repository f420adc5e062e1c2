// The line above Generate that says with what it runs: the model and the parameters that are set. It opens them.
import { $, isChat, model, onRender } from "./state.js";
import { readForm } from "./parameters.js";

const shown = { temperature: (v) => `T ${v}`, max_tokens: (v) => `${v} tokens`, max_completion_tokens: (v) => `${v} tokens`, seed: (v) => `seed ${v}`, top_p: (v) => `top_p ${v}` };
const hidden = new Set(["logprobs", "top_logprobs"]); // they change nothing of the text

// summaryOf returns the line of a model with parameters.
export function summaryOf(name, settings) {
  const known = Object.keys(shown).filter((parameter) => settings[parameter] !== undefined).map((parameter) => shown[parameter](settings[parameter]));
  const several = settings.n > 1 ? [`n ${settings.n}`] : [];
  const others = Object.keys(settings).filter((parameter) => !(parameter in shown) && !hidden.has(parameter) && parameter !== "n");
  return [name, ...known, ...several, ...(others.length > 3 ? [`${others.length} more`] : others)].join(" · ");
}

const form = () => $(isChat() ? "chat-settings" : "settings");

export function start() {
  onRender(render);
  for (const id of ["settings", "chat-settings"]) $(id).addEventListener("input", render);
  for (const type of ["change", "shown"]) $("model").addEventListener(type, render);
  $("summary").addEventListener("click", () => {
    $("parameters").open = true;
    form().elements[0].focus();
    form().scrollIntoView({ block: "nearest" });
  });
  render();
}

// render shows the line, also when the models have been loaded.
export function render() {
  const text = summaryOf(model(), readForm(form()));
  if ($("summary").textContent !== text) $("summary").textContent = text;
}
