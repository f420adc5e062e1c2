// The models and keys that the user can choose, what is left of the key's budget, and what the next run costs.
import * as allowing from "./allowing.js";
import * as api from "./api.js";
import * as chatbody from "./chatbody.js";
import * as conversing from "./conversing.js";
import * as tree from "./tree.js";
import { $, bench, element, isChat, isRunning, model, onChange, rootOfSelected, state } from "./state.js";
import { text } from "./canvas.js";
import { dateTime } from "../times.js";
import { retryWhileUnreachable } from "./problems.js";
import { compared, forms } from "./comparing.js";
import { firstProblem, markInvalid } from "./parameters.js";
import { nextMessages } from "./composer.js";
import { settings } from "./requests.js";
import { render as renderSummary } from "./summary.js";

// start loads the options, and again every ten seconds while the page is visible.
export async function start() {
  allowing.start();
  $("model").addEventListener("change", renderModel);
  $("model").addEventListener("shown", renderModel);
  $("key").addEventListener("change", () => {
    const chosen = model();
    renderModels();
    if (model() !== chosen) $("model").dispatchEvent(new Event("change")); // none was allowed before
    allowing.renderRun();
    renderBudget();
    estimateSoon();
  });
  for (const el of [$("settings"), ...forms(), $("message"), $("chat-settings")]) el.addEventListener("input", estimateSoon);
  for (const el of [$("model"), $("second-panel"), $("message-role")]) el.addEventListener("change", estimateSoon);
  onChange(() => { if (!isRunning()) estimateSoon(); });
  document.addEventListener("mode", estimateSoon);
  await retryWhileUnreachable(load);
  const reload = () => load(false).catch(() => { /* the next poll may succeed */ });
  setInterval(() => { if (!document.hidden) reload(); }, 10_000);
  bench.addEventListener("run-ended", reload); // for what is left of the budget
}

async function load(mayAsk = true) {
  state.options = await api.getOptions(mayAsk);
  const { keys } = state.options;
  setOptions($("key"), keys.map((k) => [k.id, `${k.name} ${k.prefix}…`]));
  renderModels();
  allowing.renderRun();
  if (!$("key").value) {
    $("error").replaceChildren(element("p", { className: "notice warn" }, "The workbench needs an active key: its budget and queue apply. ", element("a", { href: "/keys/new", textContent: "Create key" })));
  }
  renderModel();
  renderSummary();
  renderBudget();
}

// renderModels lists the models. One that the chosen key may not use cannot be chosen, but stays selected, so that a document
// keeps its model.
function renderModels() {
  for (const el of document.querySelectorAll("[data-models]")) {
    const models = state.options.models.filter((m) => m.completions || el.dataset.models !== "completions");
    setOptions(el, models.map((m) => (allowing.isAllowed(m.id) ? [m.id, `${m.id} (${stateOf(m, el.id === "model")})`] : [m.id, `${m.id} (not allowed for this key)`, true])));
  }
}

const stateOf = (m, withSpeed) => [m.status === "warm" ? "ready" : m.status, withSpeed && m.tokens_per_second && `${Math.round(m.tokens_per_second).toLocaleString("en")} tokens/s`].filter(Boolean).join(", ");

function setOptions(select, entries) {
  const selected = select.value;
  select.replaceChildren(...entries.map(([value, text, disabled = false]) => Object.assign(new Option(text, value, false, value === selected), { disabled })));
}

function renderModel() {
  const m = state.options.models.find((option) => option.id === model());
  if (!m) return;
  const context = m.max_model_len ? `, context of ${m.max_model_len.toLocaleString("en")} tokens` : "";
  const speed = m.tokens_per_second ? ` In the last hour: ${Math.round(m.tokens_per_second).toLocaleString("en")} tokens/s, the first after ${m.first_token_seconds.toFixed(2)} s.` : "";
  $("model-state").textContent = (m.status === "warm" ? `Ready${context}.` : `${m.status[0].toUpperCase()}${m.status.slice(1)}${context}. It ${m.state}.`) + speed;
  if (!m.max_logprobs) return;
  for (const form of [$("settings"), ...forms()]) form.elements.logprobs.max = m.max_logprobs;
  $("chat-settings").elements.top_logprobs.max = Math.min(m.max_logprobs, chatbody.mostAlternatives);
}

// renderBudget shows what is left of the tightest budget of the key and the account.
function renderBudget() {
  const budget = state.options.keys.find((key) => key.id === $("key").value)?.budget;
  $("budget").textContent = budget
    ? `${budget.left.toLocaleString("en")} of ${budget.limit.toLocaleString("en")} tokens left of the ${budget.name} budget.${budget.resets_at ? ` Resets ${dateTime(budget.resets_at)}.` : ""}`
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
  const requests = isChat() ? nextChat() : nextCompletions();
  const forms_ = isChat() ? [$("chat-settings")] : [$("settings"), ...compared().map(({ form }) => form)];
  if (!requests.length || forms_.some(firstProblem) || !$("key").value || m?.status !== "warm" || requests.some((request) => !allowing.isAllowed(request.model))) { $("cost").textContent = ""; return; }
  asking = new AbortController();
  try {
    const answers = await Promise.all(requests.map((request, i) => api.estimate($("key").value, request, asking.signal).catch((error) => { throw Object.assign(error, { form: forms_[i] }); })));
    for (const form of forms_) markInvalid(form, null);
    const sum = (name) => answers.reduce((total, answer) => total + answer[name], 0);
    const limited = answers.find((answer) => !answer.fits);
    const most = limited ? ` Your budget leaves ${limited.limited_by.remaining.toLocaleString("en")}, so ${isChat() ? "max_completion_tokens" : "max_tokens"} is lowered to ${limited.applied_max_tokens.toLocaleString("en")}.` : "";
    $("cost").textContent = `Next run: ${sum("prompt_tokens").toLocaleString("en")} prompt + up to ${sum("max_completion_tokens").toLocaleString("en")} completion tokens.${most}`;
  } catch (error) {
    if (error.name !== "AbortError") sayRefused(error);
  }
}

// sayRefused says why the next run would be refused, at the field that it is about.
function sayRefused(error) {
  const isAboutField = error.status === 400 && error.param in error.form.elements;
  $("cost").textContent = error.code === "budget_exceeded" ? "The next run exceeds your remaining budget." : isAboutField ? error.message : "";
  if (isAboutField) markInvalid(error.form, error.param);
}

// nextChat returns the request that Send would send, if there is one.
function nextChat() {
  const messages = nextMessages();
  if (!messages) return [];
  const request = chatbody.body(model(), messages, conversing.settings());
  return [messages.at(-1).role === "assistant" ? chatbody.continuing(request) : request];
}

// nextCompletions returns the requests that Generate would send.
function nextCompletions() {
  if (!text()) return [];
  return [{ model: model(), settings: settings() }, ...compared()].map((job) => ({ model: job.model, prompt: promptOf(job.model), ...job.settings }));
}

// promptOf returns the text as the next run sends it: as token ids, if the model's are known.
function promptOf(requested) {
  const { doc } = state;
  const ids = rootOfSelected().model === requested ? tree.prefix(doc, doc.selected) : [];
  return ids.length && ids.every((id) => id !== null) ? ids : text();
}
