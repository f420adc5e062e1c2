// The models that a comparison adds: up to three. The parameters of each are those of the first model, except those that the user
// changes.
import { $, button, element } from "./state.js";
import { createFields, readForm } from "./parameters.js";

const names = { second: "q", third: "r", fourth: "s" }; // with the prefixes of their fields
let others = [];

class Other {
  constructor(name) {
    Object.assign(this, { name, changed: new Set() }); // of the parameters that differ
    this.select = element("select", { id: `${name}-model`, dataset: { models: "completions" } });
    this.form = element("form", { id: `${name}-settings`, className: "parameters", "aria-label": `Parameters of the ${name} model` }, ...createFields(names[name]));
    this.summary = element("summary");
    this.equal = button("Equal parameters", () => this.reset(), { className: "quiet" });
    this.remove = button("Remove", () => this.show(false), { className: "quiet", "aria-label": `Remove the ${name} model` });
    this.box = element("div", { className: "other", hidden: name !== "second" },
      element("div", { className: "line" }, element("label", {}, "Model ", this.select), ...(name === "second" ? [] : [this.remove])),
      element("details", {}, this.summary, this.equal, this.form));
    this.form.addEventListener("submit", (event) => event.preventDefault());
    this.form.addEventListener("input", ({ target }) => {
      if (target.value === $("settings").elements[target.name]?.value) this.changed.delete(target.name);
      else this.changed.add(target.name);
      this.follow();
    });
  }

  // show adds the model to the comparison, or takes it out.
  show(isShown) {
    this.box.hidden = !isShown;
    showAdd();
    if (isShown) this.select.focus();
    else $("add-model").focus();
    this.select.dispatchEvent(new Event("change", { bubbles: true }));
  }

  reset() {
    this.changed.clear();
    this.follow();
    this.form.dispatchEvent(new Event("input"));
    this.summary.focus();
  }

  // follow copies the parameters of the first model that are not changed.
  follow() {
    this.changed.delete(undefined); // the form itself
    for (const { name, value } of $("settings").elements) {
      const field = this.form.elements[name];
      if (!this.changed.has(name)) field.value = value;
      field.closest("label").classList.toggle("changed", this.changed.has(name));
    }
    this.equal.hidden = this.changed.size === 0;
    this.summary.replaceChildren("Parameters: ", this.changed.size ? element("b", { textContent: [...this.changed].join(", ") }) : "equal");
  }
}

const showAdd = () => { $("add-model").hidden = others.every(({ box }) => !box.hidden); };

export function start() {
  others = Object.keys(names).map((name) => new Other(name));
  $("others").append(...others.map(({ box }) => box));
  $("add-model").addEventListener("click", () => others.find(({ box }) => box.hidden).show(true));
  $("settings").addEventListener("input", follow);
  follow();
}

export function follow() {
  for (const other of others) other.follow();
}

// forms returns the forms of all models but the first.
export const forms = () => others.map(({ form }) => form);

// compared returns the models but the first that the next run uses: {name, model, form, settings}.
export function compared() {
  follow();
  return !$("compare").checked ? [] : others.filter(({ box }) => !box.hidden)
    .map(({ name, select, form }) => ({ name, model: select.value, form, settings: readForm(form) }));
}
