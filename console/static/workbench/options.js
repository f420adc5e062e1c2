// The models and keys that the user can choose, what is left of the key's budget, and what the next run costs.
import * as api from "./api.js";
import * as tree from "./tree.js";
import { $, bench, element, model, state } from "./state.js";
import { dateTime } from "./problems.js";
import { settings } from "./requests.js";

// start loads the options, and again every ten seconds while the page is visible.
export async function start() {
  $("model").addEventListener("change", renderModel);
  $("model").addEventListener("shown", renderModel);
  $("key").addEventListener("change", () => { renderBudget(); estimateSoon(); });
  for (const id of ["prompt", "settings", "second-settings"]) $(id).addEventListener("input", estimateSoon);
  for (const id of ["model", "second-model", "compare"]) $(id).addEventListener("change", estimateSoon);
  await load();
  const reload = () => load(false).catch(() => { /* the next poll may succeed */ });
  setInterval(() => { if (!document.hidden) reload(); }, 10_000);
  bench.addEventListener("run-ended", reload); // for what is left of the budget
}

async function load(mayAsk = true) {
  state.options = await api.getOptions(mayAsk);
  const { models, keys } = state.options;
  for (const el of document.querySelectorAll("[data-models]")) setOptions(el, models.map((m) => [m.id, `${m.id} (${m.status})`]));
  setOptions($("key"), keys.filter((k) => k.state === "active").map((k) => [k.id, `${k.name} ${k.prefix}…`]));
  for (const id of ["generate", "score", "score-texts"]) $(id).disabled = !$("key").value || Boolean(state.running);
  if (!$("key").value) {
    $("error").replaceChildren(element("p", { className: "notice warn" }, "The workbench needs an active key: its budget and queue apply. ", element("a", { href: "/keys/new", textContent: "Create key" })));
  }
  renderModel();
  renderBudget();
}

function setOptions(select, entries) {
  const selected = select.value;
  select.replaceChildren(...entries.map(([value, text]) => new Option(text, value, false, value === selected)));
}

function renderModel() {
  const m = state.options.models.find((option) => option.id === model());
  if (!m) return;
  const boot = m.boot_seconds ? ` Starts with your request, in about ${m.boot_seconds} s.` : "";
  $("model-state").textContent = `${m.status === "warm" ? "Ready" : m.status}${m.max_model_len ? `, context of ${m.max_model_len.toLocaleString("en")} tokens` : ""}.${m.status === "warm" ? "" : boot}`;
  for (const form of [$("settings"), $("second-settings")]) if (m.max_logprobs) form.elements.logprobs.max = m.max_logprobs;
}

// renderBudget shows what is left of the tightest budget of the key and the account.
function renderBudget() {
  const budget = state.options.keys.find((key) => key.id === $("key").value)?.budget;
  $("budget").textContent = budget
    ? `${budget.left.toLocaleString("en")} of ${budget.limit.toLocaleString("en")} tokens left of the ${budget.name} budget. Resets ${dateTime(budget.resets_at)}.`
    : "No budget limits this key.";
}

let timer = 0;
let asking = null; // AbortController of the estimate that is requested

// estimateSoon shows what the next run costs, half a second after the last change.
export function estimateSoon() {
  clearTimeout(timer);
  timer = setTimeout(estimate, 500);
}

async function estimate() {
  asking?.abort();
  const m = state.options.models.find((option) => option.id === model());
  if (!$("prompt").value || !$("key").value || m?.status !== "warm") { $("cost").textContent = ""; return; }
  asking = new AbortController();
  try {
    const requests = [{ model: model(), prompt: promptOf(model()), ...settings() }];
    if ($("compare").checked) requests.push({ model: $("second-model").value, prompt: promptOf($("second-model").value), ...settings($("second-settings")) });
    const answers = await Promise.all(requests.map((request) => api.estimate($("key").value, request, asking.signal)));
    const sum = (name) => answers.reduce((total, answer) => total + answer[name], 0);
    const limited = answers.find((answer) => !answer.fits);
    const most = limited ? ` Your budget leaves ${limited.limited_by.remaining.toLocaleString("en")}, so max_tokens is lowered to ${limited.applied_max_tokens.toLocaleString("en")}.` : "";
    $("cost").textContent = `Next run: ${sum("prompt_tokens").toLocaleString("en")} prompt + up to ${sum("max_completion_tokens").toLocaleString("en")} completion tokens.${most}`;
  } catch (error) {
    if (error.name !== "AbortError") $("cost").textContent = error.code === "budget_exceeded" ? "Next run: more than your budget leaves." : "";
  }
}

// promptOf returns the prompt as the next run sends it: as token ids, if they are known.
function promptOf(requested) {
  const text = $("prompt").value;
  const root = tree.roots(state.doc).map((id) => state.doc.nodes[id]).find((node) => node.text === text && node.model === requested && node.tokens.length);
  return root ? root.tokens.map((token) => token.id) : text;
}
