// The panel that copies what is selected, and saves the tree as files.
import * as canvas from "./canvas.js";
import * as chatbody from "./chatbody.js";
import * as conversing from "./conversing.js";
import * as copying from "./copying.js";
import * as files from "./files.js";
import * as loom from "./loom.js";
import * as tree from "./tree.js";
import * as turns from "./turns.js";
import { $, bench, isChat, modelOf, state } from "./state.js";
import { firstProblem } from "./parameters.js";
import { labelOf } from "./labels.js";
import { nextMessages } from "./composer.js";
import { shownModel } from "./columns.js";
import { settings } from "./requests.js";
import { withText } from "./texts.js";

// start connects the buttons. prompt returns the document with its name, as it is saved.
export function start(prompt) {
  for (const button of document.querySelectorAll("[data-copy-as]")) button.addEventListener("click", () => copyAs(button.dataset.copyAs));
  for (const button of document.querySelectorAll("[data-export]")) button.addEventListener("click", () => save(button.dataset.export, prompt()));
}

// request returns the request of the selected branch, or of the conversation that is shown.
function request() {
  const { doc } = state;
  if (isChat()) return chatRequest();
  const ids = doc.nodes[doc.selected].parent === null ? [] : tree.prefix(doc, doc.selected);
  return copying.body(shownModel(), $("copy-ids").checked && ids.length && ids.every((id) => id !== null) ? ids : canvas.text(), settings());
}

// chatRequest returns the request that Send would send, or the one that the last answer is the answer to.
function chatRequest() {
  const { doc } = state;
  const selected = doc.nodes[doc.selected];
  const messages = nextMessages() ?? turns.messagesOf(doc, selected.parent ?? selected.id);
  const built = chatbody.body(shownModel(), messages, conversing.settings());
  return messages.at(-1)?.role === "assistant" ? chatbody.continuing(built) : built;
}

// conversation returns the turns that are shown.
const conversation = () => turns.thread(state.doc, state.doc.selected);

function text() {
  if (isChat()) return files.asDialogue(conversation());
  return $("copy-special").checked ? textWithSpecialTokens() : canvas.text();
}

// textWithSpecialTokens returns the text of the selected branch with tokens such as <|end_of_text|>.
function textWithSpecialTokens() {
  const { doc } = state;
  const root = tree.rootOf(doc, doc.selected);
  const tokens = tree.path(doc, doc.selected).map(withText(modelOf(doc.selected))).map(({ token }) => token);
  return (root.tokens.length ? "" : root.text) + tree.plainText(tokens);
}

function copyAs(kind) {
  const { base } = bench.dataset;
  const problem = isChat() && kind !== "text" && firstProblem($("chat-settings"));
  if (problem) {
    $("copy-status").textContent = `${problem.name}: ${problem.message}`;
    return;
  }
  const copied = {
    text,
    curl: () => copying.asCurl(base, request()),
    python: () => copying.asPython(base, request()),
    node: () => copying.asNode(base, request()),
    json: () => copying.asJSON(request()),
    batch: () => copying.asBatchLine(request()),
    "lm-eval": () => copying.asLmEval(base, request()),
  }[kind]();
  $("copied").textContent = copied;
  $("copied").hidden = false;
  navigator.clipboard?.writeText(copied).then(() => { $("copy-status").textContent = "Copied."; }, () => { $("copy-status").textContent = "Select the text and copy it by hand."; });
}

// branches returns the nodes of all prompts, or of all conversations, as files.js takes them.
function branches() {
  return tree.walk(state.doc).filter(([node]) => Boolean(node.role) === isChat()).map(([node, depth]) => {
    const tokens = node.tokens.map((token) => withText(modelOf(node.id))({ token }).token);
    if (node.role) {
      const { role, reasoning, calls, call, finish } = node;
      return { name: labelOf(node), depth, role, model: node.made?.model, text: node.text, reasoning, calls, call, finish, settings: node.made?.settings ?? null, tokens: probabilities(tokens) };
    }
    return {
      name: labelOf(node), depth, model: modelOf(node.id), text: node.parent === null ? node.text : tree.plainText(tree.withoutSpecialTokens(state.doc, tokens.map((token) => ({ token, node: node.id }))).map(({ token }) => token)),
      settings: node.made?.settings ?? null, tokens: probabilities(tokens),
    };
  });
}

const probabilities = (tokens) => tokens.map(({ id, text: piece, logprob }) => ({ id, text: piece, logprob }));

const resolve = (token, node) => withText(modelOf(node))({ token }).token;

function save(kind, prompt) {
  const title = prompt.name || "Workbench";
  const [content, type, ending] = {
    document: () => [files.asDocument(prompt), "application/json", "workbench.json"],
    json: () => [files.asJSON(title, branches()), "application/json", "json"],
    loom: () => [loom.asLoom(state.doc, resolve), "application/json", "loom.json"],
    loomsidian: () => [loom.asLoomsidian(state.doc, resolve), "application/json", "loomsidian.json"],
    markdown: () => [isChat() ? files.asTranscript(title, conversation()) : files.asMarkdown(title, branches()), "text/markdown", "md"],
    notebook: () => [files.asNotebook(title, bench.dataset.base, request(), branches()), "application/x-ipynb+json", "ipynb"],
  }[kind]();
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([content], { type }));
  link.download = `${title.replaceAll(/[^\p{L}\p{N}]+/gu, "-").replace(/^-+|-+$/g, "") || "workbench"}.${ending}`;
  link.click();
  URL.revokeObjectURL(link.href);
}
