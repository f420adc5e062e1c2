// Presets of parameters: a few that everyone has, and the user's own, which the server keeps.
import * as api from "./api.js";
import { $, bench, element, isChat } from "./state.js";
import { fillForm, readForm } from "./parameters.js";

const builtIn = {
  "Most likely text": { max_tokens: 64, temperature: 0, n: 1, logprobs: 5 },
  "Plain sampling": { max_tokens: 64, temperature: 1, n: 1, logprobs: 5 },
  "Focused": { max_tokens: 64, temperature: 0.7, top_p: 0.9, n: 1, logprobs: 5 },
  "Four samples": { max_tokens: 64, temperature: 1, n: 4, logprobs: 5 },
};

const builtInForChat = {
  "Most likely text": { max_completion_tokens: 256, temperature: 0, n: 1, top_logprobs: 5 },
  "Plain sampling": { max_completion_tokens: 256, temperature: 1, n: 1, top_logprobs: 5 },
  "Focused": { max_completion_tokens: 256, temperature: 0.7, top_p: 0.9, n: 1, top_logprobs: 5 },
  "Four samples": { max_completion_tokens: 256, temperature: 1, n: 4, top_logprobs: 5 },
};

const forEveryone = () => (isChat() ? builtInForChat : builtIn);
const form = () => $(isChat() ? "chat-settings" : "settings");
const modeShown = () => (isChat() ? "chat" : "completion");

const saved = { completion: {}, chat: {} }; // the user's own, by mode and name
const own = () => saved[modeShown()];

// load gets the user's own presets. Those that an earlier version has kept in this browser go to the server.
async function load() {
  for (const [mode, prefix] of [["completion", "basegate-presets"], ["chat", "basegate-chat-presets"]]) {
    const key = `${prefix}:${bench.dataset.account}`;
    try {
      for (const [name, settings] of Object.entries(JSON.parse(localStorage.getItem(key)) ?? {})) await api.savePreset(mode, name, settings);
      localStorage.removeItem(key);
    } catch { /* storage may be disabled, or they stay there until the next time */ }
  }
  const { presets } = await api.getPresets();
  for (const { mode, name, settings } of presets) saved[mode][name] = settings;
  render($("preset").value);
}

// change runs a change of the user's presets, and says what it has done or why not.
async function change(task, done, selected) {
  try {
    await task();
    $("preset-status").textContent = done;
    render(selected);
  } catch (error) {
    $("preset-status").textContent = error.message;
  }
}

export function start() {
  const select = $("preset");
  render();
  load().catch((error) => { $("preset-status").textContent = `Your presets could not be loaded: ${error.message}`; });
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
    const [mode, name, settings] = [modeShown(), $("preset-name").value.trim(), readForm(form())];
    change(async () => {
      await api.savePreset(mode, name, settings);
      saved[mode][name] = settings;
      $("preset-name").value = "";
    }, `Preset “${name}” saved.`, name);
  });
  $("delete-preset").addEventListener("click", () => {
    const [mode, name] = [modeShown(), select.value];
    change(async () => {
      await api.deletePreset(mode, name);
      delete saved[mode][name];
    }, `Preset “${name}” deleted.`);
  });
}

function render(selected = "") {
  const group = (label, names) => (names.length ? [element("optgroup", { label }, ...names.map((name) => new Option(name, name)))] : []);
  $("preset").replaceChildren(new Option("Choose a preset", ""), ...group("Your presets", Object.keys(own())), ...group("For everyone", Object.keys(forEveryone())));
  $("preset").value = selected;
  $("delete-preset").hidden = !(selected in own());
}
