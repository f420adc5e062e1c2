// The sampling parameters with the names and limits of the API. The table is used for the form, for the request, and to find
// the field that an error is about. An empty field is not sent, so vLLM's default applies. Rare parameters are folded.
export const parameters = [
  { name: "max_tokens", label: "max_tokens", kind: "integer", min: 1, value: 64, hint: "most tokens to generate" },
  { name: "temperature", kind: "number", min: 0, max: 2, step: 0.05, value: 1, hint: "0 = always the most likely token" },
  { name: "top_p", kind: "number", min: 0, max: 1, step: 0.01, hint: "sample from the most likely tokens with this total probability; above 0" },
  { name: "top_k", rare: true, kind: "integer", min: -1, hint: "sample from this many most likely tokens; -1 = all" },
  { name: "min_p", rare: true, kind: "number", min: 0, max: 1, step: 0.01, hint: "lowest probability, relative to the most likely token" },
  { name: "presence_penalty", rare: true, kind: "number", min: -2, max: 2, step: 0.1, hint: "above 0: fewer tokens that are in the text already" },
  { name: "frequency_penalty", rare: true, kind: "number", min: -2, max: 2, step: 0.1, hint: "above 0: fewer tokens, the more often they are in the text" },
  { name: "repetition_penalty", rare: true, kind: "number", min: 0, max: 2, step: 0.05, hint: "above 0; 1 = no penalty" },
  { name: "seed", kind: "integer", hint: "same seed = same text; blank = random" },
  { name: "n", kind: "integer", min: 1, max: 16, value: 1, hint: "continuations side by side" },
  { name: "logprobs", kind: "integer", min: 1, max: 20, value: 5, hint: "alternatives per token" },
  { name: "stop", rare: true, kind: "lines", hint: "one per line; \\n = line break" },
];

// createFields returns the fields of a form; the rare ones are in details. The prefix distinguishes the ids of two forms on
// one page.
export function createFields(prefix) {
  const rare = document.createElement("details");
  rare.className = "rare";
  const summary = document.createElement("summary");
  summary.textContent = "More parameters";
  const folded = document.createElement("div");
  folded.className = "parameters";
  folded.append(...parameters.filter((p) => p.rare).map((p) => createField(p, prefix)));
  rare.append(summary, folded);
  return [...parameters.filter((p) => !p.rare).map((p) => createField(p, prefix)), rare];
}

// createField returns a field whose hint is shown while the pointer or the focus is on it.
function createField(p, prefix) {
  const label = document.createElement("label");
  const name = document.createElement("code");
  name.textContent = p.name;
  const input = document.createElement(p.kind === "lines" ? "textarea" : "input");
  input.id = `${prefix}-${p.name}`;
  input.name = p.name;
  if (p.kind !== "lines") {
    input.type = "number";
    for (const limit of ["min", "max"]) if (p[limit] !== undefined) input[limit] = p[limit];
    input.step = p.kind === "integer" ? 1 : "any";
  } else {
    input.rows = 2;
  }
  input.value = p.value ?? "";
  const hint = document.createElement("small");
  hint.id = `${input.id}-hint`;
  hint.className = "hint";
  hint.textContent = `${range(p)}${p.hint}. Blank = server default`;
  input.setAttribute("aria-describedby", hint.id);
  label.append(name, input, hint);
  return label;
}

function range(p) {
  if (p.min === undefined || p.max === undefined) return "";
  return `${p.min} to ${p.max}: `;
}

// readForm returns the parameters of a form as the API takes them. Values out of range are sent unchanged: the API's error
// explains them.
export function readForm(form) {
  const values = {};
  for (const p of parameters) {
    const text = form.elements[p.name].value;
    if (text.trim() === "") continue;
    values[p.name] = p.kind === "lines"
      ? text.split("\n").filter((line) => line !== "").map((line) => line.replaceAll("\\n", "\n"))
      : Number(text);
  }
  return values;
}

// fillForm sets the fields of a form to values that readForm has returned.
export function fillForm(form, values) {
  for (const p of parameters) {
    const value = values[p.name];
    form.elements[p.name].value = Array.isArray(value) ? value.map((line) => line.replaceAll("\n", "\\n")).join("\n") : value ?? "";
  }
  showRare(form);
}

// showRare opens the rare parameters of a form if one of them is set.
export function showRare(form) {
  if (parameters.some((p) => p.rare && form.elements[p.name].value)) form.querySelector(".rare").open = true;
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
