// The sampling parameters, as the API names and bounds them: one table for the form, for what is sent, and for what an
// error is shown beside. An empty field is not sent, so that vLLM's own default holds.
export const parameters = [
  { name: "max_tokens", label: "max_tokens", kind: "integer", min: 1, value: 64, hint: "how many tokens at the most" },
  { name: "temperature", kind: "number", min: 0, max: 2, step: 0.05, value: 1, hint: "0 takes the likeliest token every time" },
  { name: "top_p", kind: "number", min: 0, max: 1, step: 0.01, hint: "only the likeliest tokens that make up this much; above 0" },
  { name: "top_k", kind: "integer", min: -1, hint: "only so many of the likeliest; -1: all" },
  { name: "min_p", kind: "number", min: 0, max: 1, step: 0.01, hint: "only tokens at least this likely, as a part of the likeliest" },
  { name: "presence_penalty", kind: "number", min: -2, max: 2, step: 0.1 },
  { name: "frequency_penalty", kind: "number", min: -2, max: 2, step: 0.1 },
  { name: "repetition_penalty", kind: "number", min: 0, max: 2, step: 0.05, hint: "above 0; 1 changes nothing" },
  { name: "seed", kind: "integer", hint: "the same seed gives the same text; empty: another every time" },
  { name: "n", kind: "integer", min: 1, max: 16, value: 1, hint: "continuations side by side" },
  { name: "logprobs", kind: "integer", min: 1, max: 20, value: 5, hint: "alternatives to each token" },
  { name: "stop", kind: "lines", hint: "one text a line; \\n stands for a line break" },
];

// fields makes the form's fields. prefix keeps the ids of two forms on a page apart.
export function fields(prefix) {
  return parameters.map((p) => {
    const label = document.createElement("label");
    const name = document.createElement("code");
    name.textContent = p.name;
    const input = document.createElement(p.kind === "lines" ? "textarea" : "input");
    input.id = `${prefix}-${p.name}`;
    input.name = p.name;
    if (p.kind !== "lines") {
      input.type = "number";
      for (const bound of ["min", "max"]) if (p[bound] !== undefined) input[bound] = p[bound];
      input.step = p.kind === "integer" ? 1 : "any";
    } else {
      input.rows = 2;
    }
    input.value = p.value ?? "";
    label.append(name, input);
    if (p.hint) {
      const hint = document.createElement("small");
      hint.id = `${input.id}-hint`;
      hint.textContent = range(p) + p.hint;
      input.setAttribute("aria-describedby", hint.id);
      label.append(hint);
    }
    return label;
  });
}

function range(p) {
  if (p.min === undefined || p.max === undefined) return "";
  return `${p.min} to ${p.max}: `;
}

// read is what a form says, as the API takes it. What is out of range goes as it is: the API's own words explain it.
export function read(form) {
  const all = {};
  for (const p of parameters) {
    const text = form.elements[p.name].value;
    if (text.trim() === "") continue;
    all[p.name] = p.kind === "lines"
      ? text.split("\n").filter((one) => one !== "").map((one) => one.replaceAll("\\n", "\n"))
      : Number(text);
  }
  return all;
}

// write puts into a form what read has taken from one.
export function write(form, settings) {
  for (const p of parameters) {
    const value = settings[p.name];
    form.elements[p.name].value = Array.isArray(value) ? value.map((one) => one.replaceAll("\n", "\\n")).join("\n") : value ?? "";
  }
}

// blame marks the field that an error is about, and tells whether there is one.
export function blame(form, name) {
  for (const input of form.querySelectorAll("[aria-invalid]")) input.removeAttribute("aria-invalid");
  const input = name && form.elements[name];
  if (!input) return false;
  input.setAttribute("aria-invalid", "true");
  return true;
}
