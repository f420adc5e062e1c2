// The run of the second model: its parameters are those of the first one, except those that the user changes.
import { $ } from "./state.js";
import { readForm } from "./parameters.js";

const changed = new Set(); // names of the parameters that differ

export function start() {
  $("settings").addEventListener("input", follow);
  $("second-settings").addEventListener("input", ({ target }) => {
    if (target.value === $("settings").elements[target.name]?.value) changed.delete(target.name);
    else changed.add(target.name);
    follow();
  });
  $("equal-settings").addEventListener("click", () => {
    changed.clear();
    follow();
    $("second-settings").dispatchEvent(new Event("input"));
    $("compare").focus();
  });
  follow();
}

// follow copies the parameters of the first model that are not changed.
export function follow() {
  changed.delete(""); // the form itself
  for (const { name, value } of $("settings").elements) {
    const field = $("second-settings").elements[name];
    if (!changed.has(name)) field.value = value;
    field.closest("label").classList.toggle("changed", changed.has(name));
  }
  $("equal-settings").hidden = changed.size === 0;
}

export function secondSettings() {
  follow();
  return readForm($("second-settings"));
}

// showRuns returns for each run a function that shows its progress in a line of its own.
export function showRuns(models) {
  return [$("progress"), $("second-progress")].slice(0, models.length)
    .map((line, i) => (text) => { line.textContent = models.length > 1 ? `${models[i]}: ${text}` : text; });
}
