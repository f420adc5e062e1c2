// What the toolbar says about keeping the document: how large it is, why it was not saved, and how to keep it then.
import * as tree from "./tree.js";
import { $, bench, state } from "./state.js";
import { megabytes } from "./saved.js";

export const maxBytes = Number(bench.dataset.maxBytes);

// showSize shows the size of the document beside the most that can be saved.
export function showSize() {
  const bytes = tree.bytesOf(state.doc);
  const isTooLarge = bytes > maxBytes;
  $("saved-size").textContent = `${bytes < 0.05 * (1 << 20) ? "Under 0.1" : megabytes(bytes)} of ${megabytes(maxBytes)} MB${isTooLarge ? ": too large to save. Export it to a file." : ""}`;
  $("saved-size").classList.toggle("bad", isTooLarge);
  if (isTooLarge) $("export-document").hidden = false;
}

// explain returns why a save has failed, and that nothing is lost. isKept says that the browser has the draft.
export function explain(error, isKept) {
  $("export-document").hidden = error.status !== 413 && isKept;
  const file = error.status === 413 ? " Export it to a file, which the workbench can open again." : "";
  return `${error.message}${isKept ? ` Nothing is lost: the draft stays in this browser.${file}` : " This browser does not keep the draft: leave this page open, or export it to a file."}`;
}

// warn says that the browser does not keep the draft. null: it does.
let warned = false;
export function warn(error) {
  showSize();
  if (Boolean(error) === warned) return;
  warned = Boolean(error);
  $("draft-status").textContent = error ? `This browser ${error.name === "QuotaExceededError" ? "has no room for" : "does not keep"} the draft. Nothing is lost while this page is open: save it, or export it to a file.` : "";
  if (warned) $("export-document").hidden = false;
}
