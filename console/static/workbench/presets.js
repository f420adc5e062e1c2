// Presets of parameters: a few that everyone has, and the user's own, which the browser keeps.
import { $, bench, element, isChat } from "./state.js";
import { fillForm, readForm } from "./parameters.js";

const builtIn = {
  "Most likely text": { max_tokens: 64, temperature: 0, n: 1, logprobs: 5 },
  "Plain sampling": { max_tokens: 64, temperature: 1, n: 1, logprobs: 5 },
  "Focused": { max_tokens: 64, temperature: 0.7, top_p: 0.9, n: 1, logprobs: 5 },
  "Four different ones": { max_tokens: 64, temperature: 1, n: 4, logprobs: 5 },
};

const builtInForChat = {
  "Most likely text": { max_completion_tokens: 256, temperature: 0, n: 1, top_logprobs: 5 },
  "Plain sampling": { max_completion_tokens: 256, temperature: 1, n: 1, top_logprobs: 5 },
  "Focused": { max_completion_tokens: 256, temperature: 0.7, top_p: 0.9, n: 1, top_logprobs: 5 },
  "Four different ones": { max_completion_tokens: 256, temperature: 1, n: 4, top_logprobs: 5 },
};

const forEveryone = () => (isChat() ? builtInForChat : builtIn);
const form = () => $(isChat() ? "chat-settings" : "settings");
const key = () => `basegate-${isChat() ? "chat-" : ""}presets:${bench.dataset.account}`;

function own() {
  try {
    return JSON.parse(localStorage.getItem(key())) ?? {};
  } catch {
    return {};
  }
}

// store keeps the user's own presets, and reports whether the browser took them.
function store(presets) {
  try {
    localStorage.setItem(key(), JSON.stringify(presets));
    return true;
  } catch {
    return false;
  }
}

export function start() {
  const select = $("preset");
  render();
  select.addEventListener("change", () => {
    const values = own()[select.value] ?? forEveryone()[select.value];
    if (values) {
      fillForm(form(), values);
      form().dispatchEvent(new Event("input", { bubbles: true }));
    }
    $("delete-preset").hidden = !(select.value in own());
  });
  for (const id of ["settings", "chat-settings"]) $(id).addEventListener("input", (event) => { if (event.target !== $(id)) render(""); });
  document.addEventListener("mode", () => render());
  $("save-preset").addEventListener("submit", (event) => {
    event.preventDefault();
    const name = $("preset-name").value.trim();
    const kept = store({ ...own(), [name]: readForm(form()) });
    $("preset-status").textContent = kept ? `Preset “${name}” saved in this browser.` : "This browser keeps no presets.";
    $("preset-name").value = "";
    render(kept ? name : "");
  });
  $("delete-preset").addEventListener("click", () => {
    const { [select.value]: removed, ...rest } = own();
    if (removed) store(rest);
    $("preset-status").textContent = `Preset “${select.value}” deleted.`;
    render();
  });
}

function render(selected = "") {
  const group = (label, names) => (names.length ? [element("optgroup", { label }, ...names.map((name) => new Option(name, name)))] : []);
  $("preset").replaceChildren(new Option("Choose a preset", ""), ...group("Your presets", Object.keys(own())), ...group("For everyone", Object.keys(forEveryone())));
  $("preset").value = selected;
  $("delete-preset").hidden = !(selected in own());
}
