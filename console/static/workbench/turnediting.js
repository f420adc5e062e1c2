// Editing the text of a turn in its place. The changed turn becomes a version.
import { button, element, state } from "./state.js";
import * as conversing from "./conversing.js";

// editTurn replaces the text of a turn by a field.
export function editTurn(id, turn) {
  if (state.running || turn.querySelector("form.edit")) return;
  const { role, text } = state.doc.nodes[id];
  const isAssistant = role === "assistant";
  const field = element("textarea", { value: text, rows: Math.min(20, 3 + Math.round(text.length / 70)), "aria-label": "Text of the turn" });
  const keep = (sends) => {
    if (field.value === text && !sends) close();
    else conversing.editTurn(id, field.value, sends);
  };
  const keepButton = button("Keep as a version", () => keep(false), { title: "Add a version with this text. The one that you edit does not change" });
  const sendButton = button("Send as a version", () => keep(true), { className: "main", title: "Add a version with this text, and generate the answer. Ctrl+Enter" });
  if (isAssistant) keepButton.className = "main";
  const form = element("form", { className: "edit" }, field,
    element("div", { className: "line" }, ...(isAssistant ? [] : [sendButton]), keepButton, button("Cancel", () => close(), { className: "quiet" })));
  const content = turn.querySelector(".content");
  const close = () => { form.remove(); turn.classList.remove("editing"); turn.querySelector("[data-control=edit]").focus(); };
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("keydown", (event) => {
    if (event.key === "Escape") close();
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); keep(!isAssistant); }
  });
  turn.classList.add("editing");
  content.after(form);
  field.focus();
}
