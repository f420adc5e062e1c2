// What the command palette can do in the workbench.
import { $, isChat, state } from "./state.js";
import { isAllowed } from "./allowing.js";

export function start() {
  document.addEventListener("palette", ({ detail: items }) => items.push(...list()));
}

const action = (name, run, note = "") => ({ kind: "Action", name, note, run });
const press = (name, id) => action(name, () => $(id).click());

function list() {
  const models = state.options.models.filter((m) => m[isChat() ? "chat" : "completions"] && isAllowed(m.id) && m.id !== $("model").value);
  return [
    press(isChat() ? "Send" : "Generate", isChat() ? "send" : "generate"), press("New prompt", "new"), press("Export to a file", "export-document"),
    ...models.map(({ id, status }) => action(`Switch model to ${id}`, () => {
      $("model").value = id;
      $("model").dispatchEvent(new Event("change", { bubbles: true }));
    }, status)),
  ];
}
