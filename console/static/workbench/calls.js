// The functions that an assistant's turn asks for, and the form for their results.
import * as turns from "./turns.js";
import { element, state } from "./state.js";
import { sendResults } from "./conversing.js";

// renderCalls shows the calls of a turn, and at the end of the conversation a form for their results.
export function renderCalls(box, node) {
  const calls = node.calls ?? [];
  const open = state.running || node.id !== state.doc.selected ? [] : turns.openCalls(state.doc, node.id);
  const shown = JSON.stringify([calls, open]);
  if (box.dataset.shown === shown) return;
  box.dataset.shown = shown;
  box.replaceChildren(...calls.map(createCall), ...(open.length ? [createForm(open)] : []));
}

function createCall({ name, arguments: given }) {
  return element("section", { className: "call", "aria-label": `Call of ${name}` },
    element("h4", {}, "Calls ", element("code", { textContent: name })),
    element("pre", { className: "mono", tabIndex: 0, "aria-label": "Arguments", textContent: pretty(given) }));
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text; // it is not whole
  }
}

function createForm(calls) {
  const fields = calls.map(({ id, name }) => ({ call: id, field: element("textarea", { className: "mono", rows: 3, spellcheck: false, required: true, "aria-label": `Result of ${name}` }), name }));
  const form = element("form", { className: "results" },
    ...fields.map(({ field, name }) => element("label", {}, "Result of ", element("code", { textContent: name }), field)),
    element("div", { className: "line" }, element("button", { className: "main", textContent: calls.length > 1 ? "Send results" : "Send result", title: "Add what the function returned as a turn, and generate the answer. Ctrl+Enter" })));
  form.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); form.requestSubmit(); }
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    sendResults(fields.map(({ call, field }) => ({ call, text: field.value })));
  });
  return form;
}
