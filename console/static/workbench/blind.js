// A blind comparison: the texts of several models have letters, in an order by chance, until the user has chosen one.
import * as tree from "./tree.js";
import { $, bench, button, onRender, render, select, setDocument, state } from "./state.js";

let letters = null; // Map of the ids of branches to their letters

export function start() {
  onRender(forgetRemoved);
  $("show-names").addEventListener("click", () => { reveal(); render(); });
}

function forgetRemoved() {
  for (const id of letters?.keys() ?? []) if (!state.doc.nodes[id]) letters.delete(id);
}

// end is called when all runs of a comparison have ended. Without two texts there is nothing to choose.
export function end() {
  if (!letters || letters.size > 1) return;
  reveal();
  render();
}

export const isBlind = () => letters !== null;
export const letterOf = (id) => letters?.get(id);

// shuffled returns a list in an order by chance.
export function shuffled(list, random = Math.random) {
  const all = [...list];
  for (let i = all.length - 1; i > 0; i--) {
    const j = Math.floor(random() * (i + 1));
    [all[i], all[j]] = [all[j], all[i]];
  }
  return all;
}

// begin hides the names of the models of the next comparison, of that many runs. It returns the letters for their progress.
export function begin(runs) {
  letters = new Map();
  bench.dataset.blind = "";
  $("blind-notice").hidden = false;
  return shuffled(["A", "B", "C", "D"].slice(0, runs));
}

// add gives the branches of a run its letter. It returns the branches of all runs in the order of their letters.
export function add(ids, letter) {
  ids.forEach((id, i) => letters?.set(id, ids.length > 1 ? `${letter}${i + 1}` : letter));
  return [...letters ?? []].sort(([, a], [, b]) => a.localeCompare(b)).map(([id]) => id);
}

// choice returns the button that chooses a text.
export const choice = (id) => button("Choose this", () => choose(id), { className: "quiet choose", title: "Mark this text with a star, and show which model has written each" });

function choose(id) {
  const { sideBySide } = state;
  reveal();
  setDocument(tree.change(state.doc, id, { bookmarked: true }));
  select(id);
  state.sideBySide = sideBySide;
  render();
}

export function reveal() {
  letters = null;
  delete bench.dataset.blind;
  $("blind-notice").hidden = true;
}
