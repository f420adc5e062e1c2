// The sampling parameters with the names and limits of the API. The tables are used for the forms, for the requests, and to find
// the field that an error is about. An empty field is not sent, so vLLM's default applies. Rare parameters are folded.
import { problemOf, valueOf } from "./chatbody.js";

const sampling = [
  { name: "temperature", kind: "number", min: 0, max: 2, step: 0.05, value: 1, hint: "0 = always the most likely token" },
  { name: "top_p", kind: "number", min: 0, max: 1, step: 0.01, hint: "sample from the most likely tokens with this total probability; above 0" },
  { name: "top_k", rare: true, kind: "integer", min: -1, hint: "sample from this many most likely tokens; -1 = all" },
  { name: "min_p", rare: true, kind: "number", min: 0, max: 1, step: 0.01, hint: "lowest probability, relative to the most likely token" },
  { name: "presence_penalty", rare: true, kind: "number", min: -2, max: 2, step: 0.1, hint: "above 0: fewer tokens that are in the text already" },
  { name: "frequency_penalty", rare: true, kind: "number", min: -2, max: 2, step: 0.1, hint: "above 0: fewer tokens, the more often they are in the text" },
  { name: "repetition_penalty", rare: true, kind: "number", min: 0, max: 2, step: 0.05, hint: "above 0; 1 = no penalty" },
  { name: "seed", kind: "integer", hint: "same seed = same text; blank = random" },
];
const ending = [
  { name: "stop", rare: true, kind: "lines", hint: "one per line; \\n = line break" },
  { name: "stop_token_ids", rare: true, kind: "ids", hint: "ids of tokens that end the text, with spaces between" },
  { name: "include_stop_str_in_output", rare: true, kind: "switch", hint: "true: the text ends with the stop string" },
  { name: "ignore_eos", rare: true, kind: "switch", hint: "true: goes on where the model would end" },
  { name: "min_tokens", rare: true, kind: "integer", min: 0, hint: "no end before that many tokens" },
  { name: "repetition_detection", rare: true, kind: "json", hint: "a JSON object: the text ends when a pattern repeats", blank: "off" },
];
const choosing = [
  { name: "allowed_token_ids", rare: true, kind: "ids", hint: "only these tokens can be sampled; ids with spaces between", blank: "all" },
  { name: "bad_words", rare: true, kind: "lines", hint: "texts that are not sampled, one per line; \\n = line break", blank: "none" },
  { name: "logit_bias", rare: true, kind: "json", hint: "a JSON object of token ids and what is added to their logits, -100 to 100", blank: "none" },
  { name: "structured_outputs", rare: true, kind: "json", hint: "a JSON schema, or an object with json, regex, choice or grammar", blank: "any text" },
  { name: "vllm_xargs", rare: true, kind: "json", hint: "a JSON object of arguments of the server’s logits processors", blank: "none" },
];
const serving = [
  { name: "skip_special_tokens", rare: true, kind: "switch", hint: "false: the text has special tokens" },
  { name: "spaces_between_special_tokens", rare: true, kind: "switch", hint: "false: special tokens in the text are not separated" },
  { name: "cache_salt", rare: true, kind: "text", hint: "shares cached prompts only with requests that have the same", blank: "shared with all" },
  { name: "user", rare: true, kind: "text", hint: "a tag that usage and requests can be filtered by", blank: "none" },
];

export const parameters = [
  { name: "max_tokens", kind: "integer", min: 1, value: 64, hint: "most tokens to generate" },
  ...sampling,
  { name: "n", kind: "integer", min: 1, max: 16, value: 1, hint: "continuations side by side" },
  { name: "logprobs", kind: "integer", min: 1, max: 20, value: 5, hint: "alternatives per token" },
  ...ending, ...choosing,
  { name: "add_special_tokens", rare: true, kind: "switch", hint: "false: the prompt begins without the model’s special tokens" },
  { name: "truncate_prompt_tokens", rare: true, kind: "integer", min: -1, hint: "most tokens of the prompt that are used; -1 = what fits", blank: "all" },
  { name: "truncation_side", rare: true, kind: "choice", values: ["left", "right"], hint: "where tokens of the prompt are left out" },
  ...serving,
];

// chatParameters are those of chat completions.
export const chatParameters = [
  { name: "max_completion_tokens", kind: "integer", min: 1, value: 256, hint: "most tokens of an answer, reasoning included" },
  ...sampling,
  { name: "n", kind: "integer", min: 1, max: 16, value: 1, hint: "versions of an answer" },
  { name: "top_logprobs", kind: "integer", min: 0, max: 20, value: 5, hint: "alternatives per token", blank: "no probabilities" },
  ...ending, ...choosing.filter(({ name }) => name !== "structured_outputs"),
  { name: "tools", rare: true, kind: "json", hint: "a JSON list of the functions that the model may ask for", blank: "no tools" },
  { name: "tool_choice", rare: true, kind: "choice", values: ["auto", "none", "required"], hint: "whether the model asks for a tool; only with tools" },
  { name: "response_format", rare: true, kind: "json", hint: "a JSON schema of the answer, or a whole response_format", blank: "any text" },
  { name: "chat_template_kwargs", rare: true, kind: "json", hint: "a JSON object of arguments of the model’s chat template", blank: "none" },
  ...serving,
];

const parametersOf = (form) => (form.dataset.parameters === "chat" ? chatParameters : parameters);

// createFields returns the fields of a form; the rare ones are in details. The prefix distinguishes the ids of the forms of one
// page.
export function createFields(prefix, all = parameters) {
  const rare = document.createElement("details");
  rare.className = "rare";
  const summary = document.createElement("summary");
  summary.textContent = "More parameters";
  const folded = document.createElement("div");
  folded.className = "parameters";
  folded.append(...all.filter((p) => p.rare).map((p) => createField(p, prefix)));
  rare.append(summary, folded);
  return [...all.filter((p) => !p.rare).map((p) => createField(p, prefix)), rare];
}

// createField returns a field whose hint is shown while the pointer or the focus is on it.
function createField(p, prefix) {
  const label = document.createElement("label");
  const name = document.createElement("code");
  name.textContent = p.name;
  const input = createInput(p);
  input.id = `${prefix}-${p.name}`;
  input.name = p.name;
  input.value = p.value ?? "";
  const hint = document.createElement("small");
  hint.id = `${input.id}-hint`;
  hint.className = "hint";
  hint.textContent = `${range(p)}${p.hint}. Blank = ${p.blank ?? "server default"}`;
  input.setAttribute("aria-describedby", hint.id);
  label.append(name, input, hint);
  if (p.kind === "json") label.append(createProblem(p, input, label));
  return label;
}

function createInput(p) {
  const input = document.createElement({ lines: "textarea", json: "textarea", choice: "select", switch: "select" }[p.kind] ?? "input");
  if (p.kind === "switch") input.append(...["", "true", "false"].map((value) => new Option(value, value)));
  else if (p.kind === "ids") input.inputMode = "numeric";
  else if (p.kind === "choice") input.append(...["", ...p.values].map((value) => new Option(value, value)));
  else if (p.kind === "lines") input.rows = 2;
  else if (p.kind === "json") {
    input.rows = 4;
    input.className = "mono";
    input.spellcheck = false;
  } else if (p.kind === "text") input.type = "text";
  else {
    input.type = "number";
    for (const limit of ["min", "max"]) if (p[limit] !== undefined) input[limit] = p[limit];
    input.step = p.kind === "integer" ? 1 : "any";
  }
  return input;
}

// createProblem returns the place where a field of JSON says what is wrong with it, as soon as the user leaves the field.
function createProblem(p, input, label) {
  const problem = document.createElement("small");
  problem.id = `${input.id}-problem`;
  problem.className = "problem";
  label.classList.add("whole-line");
  input.setAttribute("aria-describedby", `${input.id}-hint ${problem.id}`);
  const check = () => {
    problem.textContent = problemOf(p.name, input.value);
    if (problem.textContent) input.setAttribute("aria-invalid", "true");
    else input.removeAttribute("aria-invalid");
  };
  input.addEventListener("change", check);
  input.addEventListener("input", () => { if (problem.textContent) check(); });
  return problem;
}

// firstProblem shows what is wrong with the fields of JSON, and returns the first one as {name, message}, or null.
export function firstProblem(form) {
  const wrong = parametersOf(form).filter((p) => p.kind === "json" && problemOf(p.name, form.elements[p.name].value));
  for (const p of wrong) form.elements[p.name].dispatchEvent(new Event("change"));
  return wrong.length ? { name: wrong[0].name, message: problemOf(wrong[0].name, form.elements[wrong[0].name].value) } : null;
}

function range(p) {
  if (p.min === undefined || p.max === undefined) return "";
  return `${p.min} to ${p.max}: `;
}

// readForm returns the parameters of a form as the API takes them. Values out of range are sent unchanged: the API's error
// explains them. JSON that is not valid is returned as text, so that a draft keeps it: firstProblem says what is wrong.
export function readForm(form) {
  const values = {};
  for (const p of parametersOf(form)) {
    const text = form.elements[p.name].value;
    if (text.trim() !== "") values[p.name] = readValue(p, text);
  }
  return values;
}

function readValue(p, text) {
  switch (p.kind) {
  case "lines":
    return text.split("\n").filter((line) => line !== "").map((line) => line.replaceAll("\\n", "\n"));
  case "choice":
  case "text":
    return text;
  case "switch":
    return text === "true";
  case "ids":
    return text.trim().split(/[\s,]+/).map((id) => (/^\d+$/.test(id) ? Number(id) : id));
  case "json":
    return problemOf(p.name, text) ? text : valueOf(p.name, text);
  default:
    return Number(text);
  }
}

// fillForm sets the fields of a form to values that readForm has returned.
export function fillForm(form, values) {
  for (const p of parametersOf(form)) form.elements[p.name].value = fieldText(p, values[p.name]);
  showRare(form);
}

function fieldText(p, value) {
  if (value === undefined || value === null) return "";
  if (p.kind === "ids") return value.join(" ");
  if (p.kind === "lines") return value.map((line) => line.replaceAll("\n", "\\n")).join("\n");
  return p.kind === "json" && typeof value !== "string" ? JSON.stringify(value, null, 2) : value;
}

// showRare opens the rare parameters of a form if one of them is set.
export function showRare(form) {
  if (parametersOf(form).some((p) => p.rare && form.elements[p.name].value)) form.querySelector(".rare").open = true;
}

// markInvalid marks the field of that name as invalid, and no other one. A field that is folded is shown.
export function markInvalid(form, name) {
  for (const input of form.querySelectorAll("[aria-invalid]")) input.removeAttribute("aria-invalid");
  const input = name && form.elements[name];
  if (!input) return;
  input.setAttribute("aria-invalid", "true");
  const folded = input.closest("details.rare");
  if (folded) folded.open = true;
}
