// The panel that copies what is selected, and saves the tree as files.
import * as copying from "./copying.js";
import * as files from "./files.js";
import * as tree from "./tree.js";
import { $, bench, modelOf, state } from "./state.js";
import { labelOf } from "./branches.js";
import { shownModel } from "./columns.js";
import { settings } from "./requests.js";
import { withText } from "./texts.js";

export function start(name) {
  for (const button of document.querySelectorAll("[data-copy-as]")) button.addEventListener("click", () => copyAs(button.dataset.copyAs));
  for (const button of document.querySelectorAll("[data-export]")) button.addEventListener("click", () => save(button.dataset.export, name()));
}

// request returns the request of the selected branch.
function request() {
  const { doc } = state;
  const isPrompt = doc.nodes[doc.selected].parent === null;
  return copying.body(shownModel(), isPrompt ? $("prompt").value : tree.prefix(doc, doc.selected), settings());
}

function copyAs(kind) {
  const { base } = bench.dataset;
  const { doc } = state;
  const text = {
    text: () => (doc.nodes[doc.selected].parent === null ? $("prompt").value : tree.textOf(doc, doc.selected, withText(modelOf(doc.selected)))),
    curl: () => copying.asCurl(base, request()),
    python: () => copying.asPython(base, request()),
    json: () => copying.asJSON(request()),
    batch: () => copying.asBatchLine(request()),
    "lm-eval": () => copying.asLmEval(base, request()),
  }[kind]();
  $("copied").textContent = text;
  $("copied").hidden = false;
  navigator.clipboard?.writeText(text).then(() => { $("copy-status").textContent = "Copied."; }, () => { $("copy-status").textContent = "Select the text and copy it by hand."; });
}

// branches returns all nodes of the document as files.js takes them.
function branches() {
  return tree.walk(state.doc).map(([node, depth]) => {
    const tokens = node.tokens.map((token) => withText(modelOf(node.id))({ token }).token);
    return {
      name: labelOf(node), depth, model: modelOf(node.id), text: node.parent === null ? node.text || $("prompt").value : tree.plainText(tokens),
      settings: node.made?.settings ?? null, tokens: tokens.map(({ id, text, logprob }) => ({ id, text, logprob })),
    };
  });
}

function save(kind, name) {
  const title = name || "Workbench";
  const [content, type, ending] = {
    json: () => [files.asJSON(title, branches()), "application/json", "json"],
    markdown: () => [files.asMarkdown(title, branches()), "text/markdown", "md"],
    notebook: () => [files.asNotebook(title, bench.dataset.base, request(), branches()), "application/x-ipynb+json", "ipynb"],
  }[kind]();
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([content], { type }));
  link.download = `${title.replaceAll(/[^\p{L}\p{N}]+/gu, "-").replace(/^-+|-+$/g, "") || "workbench"}.${ending}`;
  link.click();
  URL.revokeObjectURL(link.href);
}
