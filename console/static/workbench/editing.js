// Editing the generated text of a branch in its place. The changed text becomes a branch.
import * as tree from "./tree.js";
import { button, element, modelOf, state } from "./state.js";
import { withText } from "./texts.js";
import { editBranch } from "./requests.js";

// edit replaces the tokens in a column by a field with the text after the prompt.
export function edit(id, column) {
  if (state.running || column.querySelector("form.edit")) return;
  const places = tree.continuation(state.doc, id).places.map(withText(modelOf(id)));
  const before = tree.plainText(places.map(({ token }) => token));
  const field = element("textarea", { className: "mono", value: before, rows: Math.min(20, 4 + Math.round(before.length / 60)), spellcheck: false, "aria-label": "Generated text" });
  const form = element("form", { className: "edit" }, field,
    element("div", { className: "line" },
      element("button", { className: "main", textContent: "Keep as a branch", title: "Add a branch with this text. The branch that you edit does not change" }),
      button("Cancel", () => close(), { className: "quiet" })));
  const tokens = column.querySelector(".tokens");
  const close = () => { form.remove(); tokens.hidden = false; tokens.focus(); };
  form.addEventListener("keydown", (event) => { if (event.key === "Escape") close(); });
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (field.value === before) { close(); return; }
    if (await editBranch(id, field.value)) close();
  });
  tokens.hidden = true;
  tokens.after(form);
  field.focus();
}
